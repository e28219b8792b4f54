#include "model/rope_table.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

namespace fastsft {

RopeTable make_rope_table(const ModelConfig& config, int64_t positions) {
  const at::Tensor even = at::arange(0, config.head_dim, 2, at::TensorOptions().dtype(at::kLong));
  const at::Tensor exponent = even.to(at::kFloat).div(static_cast<double>(config.head_dim));
  at::Tensor frequencies = at::pow(config.rope_theta, exponent).reciprocal();
  if (config.rope_linear_factor != 1.0) frequencies = frequencies.div(config.rope_linear_factor);
  const at::Tensor position = at::arange(positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = position.unsqueeze(1).mul(frequencies.unsqueeze(0));
  return {.cos = angles.cos(), .sin = angles.sin()};
}

}  // namespace fastsft
