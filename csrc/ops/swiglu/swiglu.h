#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Computes out = act(gate) * up, where each row of gate_up is [gate, up]. act is SiLU,
// x * sigmoid(x), or with `gelu` (GeGLU) GELU's tanh form,
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
//   gate_up [tokens, 2 * width], out [tokens, width], float32, bfloat16 or float16; arithmetic in
//   float32.
void swiglu(const at::Tensor& gate_up, const at::Tensor& out, bool gelu = false);

// Computes swiglu, and fp8_quantize (ops/fp8/fp8.h) of its result with a scale for each row, bit
// for bit.
//   gate_up bfloat16, values [tokens, width] float8_e4m3fn, scales [tokens] float32.
// `out` is undefined afterwards unless `keep` is set; without it a GPU does not write it.
void swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                const at::Tensor& scales, bool power_of_2, bool keep, bool gelu = false);

// Computes grad_gate_up from grad_out and gate_up; grad_gate_up may be gate_up itself. With
// `recompute`, grad_out is overwritten by the result of swiglu(gate_up), bit for bit.
void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                     const at::Tensor& grad_gate_up, bool recompute = false, bool gelu = false);

void check_swiglu(const at::Tensor& gate_up, const at::Tensor& out, bool gelu);
void check_swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                      const at::Tensor& scales, bool power_of_2, bool keep, bool gelu);
void check_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                           const at::Tensor& grad_gate_up, bool recompute, bool gelu);

}  // namespace fastsft
