#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "data/device_event.h"

namespace fastsft {

struct StepResult {
  double loss = 0;       // sum of weight * cross entropy over ranks and micro-batches
  double grad_norm = 0;  // gradient norm before clipping
  bool finite = true;    // false: the step updated nothing
};

// Results of steps in flight, copied from the device's step scalars (ops/gradient/step_scalars.h)
// to the host. The host reads a result while the next step runs, so the device always has work.
class StepResults {
 public:
  // `behind`: number of the newest steps that `take` leaves in flight.
  StepResults(at::Device device, size_t behind);

  // Enqueues a copy of `scalars` after all work enqueued so far.
  void push(const at::Tensor& scalars);
  // Waits for the results that are due and returns them, oldest first. With `all`, also waits for
  // the newest steps.
  std::vector<StepResult> take(bool all);

 private:
  struct Copy {
    at::Tensor values;  // page-locked memory
    DeviceEvent arrived;
  };
  Copy new_copy() const;

  at::Device device_;
  size_t behind_;
  std::deque<Copy> under_way_;
  std::vector<Copy> unused_;
};

}  // namespace fastsft
