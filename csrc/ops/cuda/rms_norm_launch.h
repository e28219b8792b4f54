#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fastsft::cuda {

enum class Dtype { kFloat, kBFloat16 };

// Formulas and overwritten arguments: ops/rms_norm.h. All pointers are on the current device; work
// is enqueued on `stream` and not waited for.
struct RmsNormArgs {
  const void* x;
  const void* residual;  // null: no residual
  const void* weight;
  void* sum;
  void* out;
  float* rstd;
  int64_t rows, hidden;
  float eps;
};
void launch_rms_norm(const RmsNormArgs& args, Dtype dtype, cudaStream_t stream);

struct RmsNormBackwardArgs {
  const void* grad_out;
  const void* x;
  const void* weight;
  const float* rstd;
  void* grad_x;
  float* grad_weight;
  float* parts;  // [kParts, hidden]: weight gradients of row ranges, summed in order
  int64_t rows, hidden;
  float beta;
};
inline constexpr int64_t kRmsNormParts = 128;
void launch_rms_norm_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
