#pragma once

#include "checkpoint/gather.h"

namespace fastsft {

// As gather_range, of value `index` of the state: those of the whole unit, of which ranks may hold
// different numbers.
at::Tensor gather_values(const UnitState& state, size_t index, Communicator& shards,
                         at::Device device, Readers readers);

}  // namespace fastsft
