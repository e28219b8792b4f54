#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

// A low-rank adapter of a linear module: y = x W^T + scale * dropout(x) A^T B^T, with
// A [rank, inputs] and B [outputs, rank] as "<module>.lora_A.weight" and "<module>.lora_B.weight".
struct AdapterLinear {
  std::string module;  // for example "model.layers.0.self_attn.q_proj" or "lm_head"
  int64_t rank = 8;
  double scale = 1;  // finite

  bool operator==(const AdapterLinear&) const = default;
};

// The parameters that are trained next to a frozen model. If empty, the whole model is trained,
// without adapters.
struct AdapterOptions {
  std::vector<AdapterLinear> linears;
  double dropout = 0;                // dropout probability of adapter inputs, [0, 1)
  std::vector<std::string> trained;  // parameters of the model that are also trained

  bool empty() const { return linears.empty() && trained.empty(); }
  bool operator==(const AdapterOptions&) const = default;
};

}  // namespace fastsft
