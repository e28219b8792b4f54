#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Formulas: ops/swiglu/swiglu.h. Rows follow each other; `access` is the elements of one
// access.
struct SwigluArgs {
  const void* gate_up;
  void* grad_out;  // null: forward
  void* out;       // forward: the activation; backward: the gradient of gate_up
  bool recompute;  // backward: grad_out is overwritten by the activation
  bool gelu;       // else SiLU
  int64_t rows, width;
  int access;
};
void launch_swiglu(const SwigluArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
