#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "shard/param_unit.h"

namespace fastsft {

// Returns the tensors of a layer's mixture of experts, one group each: the router; gate and up
// projection of every expert, which form one stack of matrices; all down projections. `prefix`:
// that of the layer's names, such as "model.layers.0.".
std::vector<ParamGroup> mixture_groups(const ModelConfig& config, const std::string& prefix);

// The names of the groups' first tensors.
struct MixtureNames {
  std::string router, gate_up, down;
};
MixtureNames mixture_names(const ModelConfig& config, const std::string& prefix);

}  // namespace fastsft
