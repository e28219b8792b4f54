#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/gradient/gradient.h"

namespace fastsft {
namespace {

void accumulate_cpu(const at::Tensor& total, const at::Tensor& x) {
  check_accumulate(total, x);
  total.add_(x);
}

constexpr int64_t kBlock = 1 << 16;  // fixed, so that the sum does not depend on the thread count

double block_sum(const at::Tensor& x, int64_t begin, int64_t size) {
  if (x.scalar_type() == at::kFloat) {
    return cpu::sum_of_squares(x.data_ptr<float>() + begin, size);
  }
  std::vector<float> wide(static_cast<size_t>(size));
  cpu::widen_range(x.data_ptr<c10::BFloat16>() + begin, wide.data(), size);
  return cpu::sum_of_squares(wide.data(), size);
}

void norm_squared_cpu(const at::Tensor& x, const at::Tensor& out) {
  check_norm_squared(x, out);
  const int64_t count = x.numel(), blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t size = std::min(kBlock, count - i * kBlock);
      sums[static_cast<size_t>(i)] = block_sum(x, i * kBlock, size);
    }
  });
  for (double sum : sums) *out.data_ptr<double>() += sum;
}

void compute_grad_scale_cpu(const at::Tensor& scalars, double max_norm) {
  check_compute_grad_scale(scalars, max_norm);
  double* values = scalars.data_ptr<double>();
  const double norm = std::sqrt(values[kStepNormSquared]);
  const bool good = std::isfinite(values[kStepLoss]) && std::isfinite(norm);
  float scale = 1.0f;
  if (max_norm > 0) scale = std::min(1.0f, static_cast<float>(max_norm / (norm + 1e-6)));
  values[kStepGradScale] = good ? scale : std::numeric_limits<double>::quiet_NaN();
  if (good) values[kStepNumber] += 1;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("accumulate", &accumulate_cpu);
  m.impl("norm_squared", &norm_squared_cpu);
  m.impl("compute_grad_scale", &compute_grad_scale_cpu);
}

}  // namespace fastsft
