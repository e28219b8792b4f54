#include <cmath>

#include "ops/clip_control/clip_control_launch.h"
#include "ops/clip_control/control_slots.h"

namespace fastsft::cuda {
namespace {

__global__ void clip_control_kernel(double* control, double max_norm) {
  const double norm = sqrt(control[kControlNormSquared]);
  const bool good = isfinite(control[kControlLoss]) && isfinite(norm);
  float scale = 1.0f;
  if (max_norm > 0) scale = fminf(1.0f, static_cast<float>(max_norm / (norm + 1e-6)));
  control[kControlGradScale] = good ? static_cast<double>(scale) : nan("");
  if (good) control[kControlStep] += 1;
}

}  // namespace

void launch_clip_control(double* control, double max_norm, cudaStream_t stream) {
  clip_control_kernel<<<1, 1, 0, stream>>>(control, max_norm);
}

}  // namespace fastsft::cuda
