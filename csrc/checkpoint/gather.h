#pragma once

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Ranks that receive a gathered tensor: rank 0 of `shards`, or all its ranks.
enum class Readers { kFirst, kAll };

// Gathers a whole unit on the CPU from each rank's `range`: a tensor of the unit's state, or
// another of the same size. Collective over `shards`, whose tensors live on `device`. A save holds
// no more than one gathered unit at a time. Returns an undefined tensor on ranks that are no
// readers. The result may be `range` itself, so do not write to it.
at::Tensor gather_range(const UnitState& state, const at::Tensor& range, Communicator& shards,
                        at::Device device, Readers readers = Readers::kFirst);

// Gathers the unit's float32 master weights, like `gather_range`.
at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device,
                         Readers readers = Readers::kFirst);

// Gathers tensor `index` of the unit's optimizer state, like `gather_range`. Ranks may hold
// different numbers of values.
at::Tensor gather_values(const UnitState& state, size_t index, Communicator& shards,
                         at::Device device, Readers readers);

}  // namespace fastsft
