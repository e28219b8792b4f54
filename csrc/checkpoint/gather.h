#pragma once

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Which ranks of `shards` want what is gathered.
enum class Readers { kFirst, kAll };

// Collective over `shards`, whose tensors live on `device`: the whole unit of which each rank has
// `range`, one of its state's tensors or one as large, on the CPU of the readers; undefined
// elsewhere. One unit at a time is all that a save ever holds. May be `range` itself: do not write.
at::Tensor gather_range(const UnitState& state, const at::Tensor& range, Communicator& shards,
                        at::Device device, Readers readers = Readers::kFirst);

// The same of the fp32 master weights.
at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device,
                         Readers readers = Readers::kFirst);

// As gather_range, of value `index` of the state: those of the whole unit, of which ranks may hold
// different numbers.
at::Tensor gather_values(const UnitState& state, size_t index, Communicator& shards,
                         at::Device device, Readers readers);

}  // namespace fastsft
