#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "data/device_event.h"

namespace fastsft {

struct StepResult {
  double loss = 0;       // sum over ranks and micro-batches of weight * cross entropy
  double grad_norm = 0;  // before clipping
  bool finite = true;    // false: nothing was updated
};

// What steps came to, on its way from the device's scalars block (ops/gradient/step_scalars.h)
// to the host. The host asks for a step while the next one is running already, and so never leaves
// the device without work.
class StepResults {
 public:
  // `behind`: how many of the newest steps `take` leaves on their way.
  StepResults(at::Device device, size_t behind);

  // Enqueues the copy of what `scalars` holds once all work enqueued so far is done.
  void push(const at::Tensor& scalars);
  // The results that are due, oldest first; with `all` also those of the newest steps. Waits for
  // them.
  std::vector<StepResult> take(bool all);

 private:
  struct Copy {
    at::Tensor values;  // page-locked
    DeviceEvent arrived;
  };
  Copy new_copy() const;

  at::Device device_;
  size_t behind_;
  std::deque<Copy> under_way_;
  std::vector<Copy> unused_;
};

}  // namespace fastsft
