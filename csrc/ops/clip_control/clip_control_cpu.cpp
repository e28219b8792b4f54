#include "ops/clip_control/clip_control.h"

#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastsft {
namespace {

float scale_of(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0f;
  return std::min(1.0f, static_cast<float>(max_norm / (norm + 1e-6)));
}

void clip_control_cpu(const at::Tensor& control, double max_norm) {
  check_clip_control(control, max_norm);
  double* values = control.data_ptr<double>();
  const double norm = std::sqrt(values[kControlNormSquared]);
  const bool good = std::isfinite(values[kControlLoss]) && std::isfinite(norm);
  values[kControlGradScale] =
      good ? scale_of(norm, max_norm) : std::numeric_limits<double>::quiet_NaN();
  if (good) values[kControlStep] += 1;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("clip_control", &clip_control_cpu); }

}  // namespace fastsft
