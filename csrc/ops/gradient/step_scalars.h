#pragma once

#include <cstdint>

namespace fastsft {

// The values that control an optimizer step, kept on the device so that the host need not wait:
// float64 [kNumStepScalars] with
//   loss          the step's loss, summed over ranks and micro-batches
//   norm_squared  squared norm of the whole gradient, before clipping
//   grad_scale    factor for the gradient, a float32 value; NaN: a bad step, which changes nothing
//   step          number of good steps so far, AdamW's t
enum StepScalar : int64_t {
  kStepLoss,
  kStepNormSquared,
  kStepGradScale,
  kStepNumber,
  kNumStepScalars
};

}  // namespace fastsft
