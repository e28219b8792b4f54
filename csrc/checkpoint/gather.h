#pragma once

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Collective over `shards`, whose tensors live on `device`: the unit's fp32 master weights, whole
// and on the CPU of rank 0; undefined elsewhere. One unit at a time is all that a save ever holds.
// May be the master itself: do not write to it.
at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device);

}  // namespace fastsft
