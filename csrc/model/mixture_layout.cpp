#include "model/mixture_layout.h"

#include <utility>

namespace fastsft {
namespace {

ParamSlot matrix_of(std::string name, int64_t outputs, int64_t inputs) {
  return {.name = std::move(name),
          .shape = {outputs, inputs},
          .offset = 0,
          .decay = true,
          .linear = true};
}

std::string expert_name(const ModelConfig& c, const std::string& prefix, int64_t expert,
                        const std::string& projection) {
  return prefix + c.mixture.module + ".experts." + std::to_string(expert) + "." + projection +
         ".weight";
}

}  // namespace

std::vector<ParamGroup> mixture_groups(const ModelConfig& c, const std::string& prefix) {
  const MixtureConfig& mixture = c.mixture;
  ParamGroup router, gate_up, down;
  router.slots.push_back(
      matrix_of(mixture_names(c, prefix).router, mixture.experts, c.hidden_size));
  for (int64_t expert = 0; expert < mixture.experts; ++expert) {
    for (const std::string& projection : {mixture.gate, mixture.up}) {
      gate_up.slots.push_back(matrix_of(expert_name(c, prefix, expert, projection),
                                        c.intermediate_size, c.hidden_size));
    }
    down.slots.push_back(matrix_of(expert_name(c, prefix, expert, mixture.down), c.hidden_size,
                                   c.intermediate_size));
  }
  return {std::move(router), std::move(gate_up), std::move(down)};
}

MixtureNames mixture_names(const ModelConfig& c, const std::string& prefix) {
  return {.router = prefix + c.mixture.module + ".gate.weight",
          .gate_up = expert_name(c, prefix, 0, c.mixture.gate),
          .down = expert_name(c, prefix, 0, c.mixture.down)};
}

}  // namespace fastsft
