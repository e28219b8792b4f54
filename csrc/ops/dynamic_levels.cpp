#include "ops/dynamic_levels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

namespace fastsft {

at::Tensor dynamic_levels(bool has_sign) {
  constexpr std::array<double, 7> kPowers = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  std::vector<at::Tensor> parts = {at::zeros({1}), at::ones({1})};
  for (size_t i = 0; i < kPowers.size(); ++i) {
    const int64_t fractions = int64_t{1} << (has_sign ? i : i + 1);
    const at::Tensor bounds = at::linspace(0.1, 1, fractions + 1, at::kFloat);
    const at::Tensor means = (bounds.slice(0, 0, -1) + bounds.slice(0, 1)) / 2.0;
    parts.push_back(means * kPowers[i]);
    if (has_sign) parts.push_back(means * -kPowers[i]);
  }
  return std::get<0>(at::cat(parts).sort());
}

}  // namespace fastsft
