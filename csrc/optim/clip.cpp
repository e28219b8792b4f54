#include "optim/clip.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/norm_squared.h"

namespace fastsft {

void add_local_norm_squared(Strategy& strategy, const at::Tensor& out) {
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    norm_squared(strategy.gradients().local(unit), out);
  }
}

at::Tensor clip_scale(double norm, double max_norm) {
  float scale = 1.0f;
  if (!std::isfinite(norm))
    scale = std::numeric_limits<float>::quiet_NaN();
  else if (max_norm > 0)
    scale = std::min(1.0f, static_cast<float>(max_norm / (norm + 1e-6)));
  return at::full({1}, scale, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace fastsft
