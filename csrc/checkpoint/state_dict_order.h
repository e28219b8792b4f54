#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shard/unit_state.h"

namespace fastsft {

// A tensor of the model and the unit that holds it.
struct TensorPlace {
  size_t unit = 0;
  const ParamSlot* slot = nullptr;
};

// All tensors in the order of transformers' state dict: by their file_order, or embedding, layers
// by number (attention, MLP, norms, weights before biases), final norm, head. The split into files
// depends on it.
std::vector<TensorPlace> state_dict_order(std::span<const UnitState> units);

}  // namespace fastsft
