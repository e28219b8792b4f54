#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/fp8/fp8_launch.h"

namespace fastsft::cuda {

// The formulas are in ops/swiglu/swiglu.h. Rows are contiguous; `access` is the number of elements
// per memory access.
struct SwigluArgs {
  const void* gate_up;
  void* grad_out;  // null in the forward pass
  void* out;       // forward: the activation, or null; backward: gate_up's gradient
  bool recompute;  // backward: overwrite grad_out with the activation
  bool gelu;       // GELU; otherwise SiLU
  int64_t rows, width;
  int access;
};
void launch_swiglu(const SwigluArgs& args, Dtype dtype, cudaStream_t stream);
// Computes the forward pass in bfloat16 with a copy in 8 bits, for rows that fit into registers.
// Writes no `out` if it is null.
void launch_swiglu_fp8(const SwigluArgs& args, const Fp8Rows& fp8, const RowPlan& plan,
                       cudaStream_t stream);

}  // namespace fastsft::cuda
