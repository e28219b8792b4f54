#include "model/rope_table.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

#include <algorithm>

namespace fastsft {

RopeTable make_rope_table(const ModelConfig& config, int64_t positions) {
  const at::Tensor even = at::arange(0, config.head_dim, 2, at::TensorOptions().dtype(at::kLong));
  const at::Tensor exponent = even.to(at::kFloat).div(static_cast<double>(config.head_dim));
  const at::Tensor frequencies = at::pow(config.rope_theta, exponent).reciprocal();
  float* first = frequencies.data_ptr<float>();
  std::transform(first, first + frequencies.numel(), first, config.scale_frequency);
  const at::Tensor position = at::arange(positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = position.unsqueeze(1).mul(frequencies.unsqueeze(0));
  return {.cos = angles.cos(), .sin = angles.sin()};
}

}  // namespace fastsft
