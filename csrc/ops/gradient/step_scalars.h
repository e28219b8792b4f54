#pragma once

#include <cstdint>

namespace fastsft {

// What decides over an optimizer step, kept on the device so that the host need not be asked:
// float64 [kNumStepScalars] with
//   loss          the step's loss, summed over ranks and micro-batches
//   norm_squared  of the whole gradient, before clipping
//   grad_scale    multiplies the gradient, a float32 value; NaN: the step is bad, change nothing
//   step          number of good steps so far, AdamW's t
enum StepScalar : int64_t {
  kStepLoss,
  kStepNormSquared,
  kStepGradScale,
  kStepNumber,
  kNumStepScalars
};

}  // namespace fastsft
