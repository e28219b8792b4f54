#include "train/step_results.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "ops/gradient/step_scalars.h"

namespace fastsft {

StepResults::StepResults(at::Device device, size_t behind) : device_(device), behind_(behind) {
  for (size_t i = 0; i <= behind; ++i) unused_.push_back(new_copy());
}

StepResults::Copy StepResults::new_copy() const {
  const auto options = at::TensorOptions().dtype(at::kDouble).pinned_memory(!device_.is_cpu());
  return {at::empty({kNumStepScalars}, options), DeviceEvent(device_)};
}

void StepResults::push(const at::Tensor& scalars) {
  if (unused_.empty()) unused_.push_back(new_copy());
  Copy copy = std::move(unused_.back());
  unused_.pop_back();
  copy.values.copy_(scalars, /*non_blocking=*/true);
  copy.arrived.record();
  under_way_.push_back(std::move(copy));
}

std::vector<StepResult> StepResults::take(bool all) {
  std::vector<StepResult> results;
  while (under_way_.size() > (all ? 0 : behind_)) {
    Copy copy = std::move(under_way_.front());
    under_way_.pop_front();
    copy.arrived.synchronize("result");
    const double* scalars = copy.values.data_ptr<double>();
    results.push_back({.loss = scalars[kStepLoss],
                       .grad_norm = std::sqrt(scalars[kStepNormSquared]),
                       .finite = std::isfinite(scalars[kStepGradScale])});
    unused_.push_back(std::move(copy));
  }
  return results;
}

}  // namespace fastsft
