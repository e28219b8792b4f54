#include "ops/swiglu/swiglu.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/fp8/fp8.h"
#include "ops/swiglu/swiglu_launch.h"

namespace fastsft {
namespace {

// Launches forward or backward. `out` is the activation, or, if grad_out is defined, gate_up's
// gradient.
void launch(const at::Tensor& gate_up, const at::Tensor& grad_out, const at::Tensor& out,
            bool recompute, bool gelu) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const int64_t width = gate_up.size(1) / 2;
  cuda::launch_swiglu({.gate_up = gate_up.data_ptr(),
                       .grad_out = grad_out.defined() ? grad_out.data_ptr() : nullptr,
                       .out = out.data_ptr(),
                       .recompute = recompute,
                       .gelu = gelu,
                       .rows = gate_up.size(0),
                       .width = width,
                       .access = cuda::access_width(width, {gate_up, grad_out, out})},
                      cuda::dtype_of(gate_up), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void swiglu_cuda(const at::Tensor& gate_up, const at::Tensor& out, bool gelu) {
  check_swiglu(gate_up, out, gelu);
  launch(gate_up, at::Tensor(), out, false, gelu);
}

void swiglu_fp8_cuda(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                     const at::Tensor& scales, bool power_of_2, bool keep, bool gelu) {
  check_swiglu_fp8(gate_up, out, values, scales, power_of_2, keep, gelu);
  const int64_t width = out.size(1);
  const int access =
      cuda::alignment_of(values) >= 8 ? cuda::access_width(width, {gate_up, out}) : 1;
  const cuda::RowPlan plan = cuda::plan_row(width, access);
  if (plan.packs == 0) {  // a row does not fit into registers
    swiglu_cuda(gate_up, out, gelu);
    return fp8_quantize(out, /*rowwise=*/true, power_of_2, values, scales);
  }
  const c10::cuda::CUDAGuard guard(gate_up.device());
  cuda::launch_swiglu_fp8(
      {.gate_up = gate_up.data_ptr(),
       .grad_out = nullptr,
       .out = keep ? out.data_ptr() : nullptr,
       .recompute = false,
       .gelu = gelu,
       .rows = gate_up.size(0),
       .width = width,
       .access = access},
      {static_cast<uint8_t*>(values.data_ptr()), scales.data_ptr<float>(), power_of_2}, plan,
      c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void swiglu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate_up,
                          const at::Tensor& grad_gate_up, bool recompute, bool gelu) {
  check_swiglu_backward(grad_out, gate_up, grad_gate_up, recompute, gelu);
  launch(gate_up, grad_out, grad_gate_up, recompute, gelu);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("swiglu", &swiglu_cuda);
  m.impl("swiglu_fp8", &swiglu_fp8_cuda);
  m.impl("swiglu_backward", &swiglu_backward_cuda);
}

}  // namespace fastsft
