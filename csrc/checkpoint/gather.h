#pragma once

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Ranks that receive a gathered tensor: rank 0 or all ranks in `shards`.
enum class Readers { kFirst, kAll };

// Gathers a whole unit on the CPU from each rank's `range`, a tensor as large as the rank's part of
// the unit. Collective over `shards`, whose tensors live on `device`. A save holds no more than one
// gathered unit at a time. Ranks that are no readers get an undefined tensor. The result may be
// `range` itself, so do not write to it.
at::Tensor gather_range(const UnitState& state, const at::Tensor& range, Communicator& shards,
                        at::Device device, Readers readers = Readers::kFirst);

// Gathers the unit's float32 master weights, like `gather_range`.
at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device,
                         Readers readers = Readers::kFirst);

// Gathers tensor `index` in the unit's optimizer state, like `gather_range`. Ranks may hold
// different numbers of values.
at::Tensor gather_values(const UnitState& state, size_t index, Communicator& shards,
                         at::Device device, Readers readers);

}  // namespace fastsft
