#include "ops/swiglu/swiglu.h"

#include <torch/library.h>

#include "ops/fp8/fp8.h"
#include "ops/schema.h"

namespace fastsft {

void swiglu(const at::Tensor& gate_up, const at::Tensor& out, bool gelu) {
  FASTSFT_DISPATCH(swiglu, gate_up, out, gelu);
}

void swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                const at::Tensor& scales, bool power_of_2, bool keep, bool gelu) {
  FASTSFT_DISPATCH(swiglu_fp8, gate_up, out, values, scales, power_of_2, keep, gelu);
}

void swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                     const at::Tensor& grad_gate_up, bool recompute, bool gelu) {
  FASTSFT_DISPATCH(swiglu_backward, grad_out, gate_up, grad_gate_up, recompute, gelu);
}

void check_swiglu(const at::Tensor& gate_up, const at::Tensor& out, bool /*gelu*/) {
  constexpr const char* kOp = "swiglu";
  check_tensors(kOp, {{"gate_up", gate_up}, {"out", out}});
  check_compute_dtype(kOp, {"gate_up", gate_up});
  check_dtype(kOp, {"out", out}, gate_up.scalar_type());
  TORCH_CHECK_VALUE(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0, kOp, ": gate_up has shape ",
                    gate_up.sizes(), ", expected [tokens, 2 * width]");
  check_shape(kOp, {"out", out}, {gate_up.size(0), gate_up.size(1) / 2});
  TORCH_CHECK_VALUE(gate_up.is_contiguous() && out.is_contiguous(), kOp,
                    ": gate_up and out must be contiguous");
}

void check_swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                      const at::Tensor& scales, bool /*power_of_2*/, bool /*keep*/, bool gelu) {
  check_swiglu(gate_up, out, gelu);
  check_dtype("swiglu_fp8", {"gate_up", gate_up}, at::kBFloat16);
  check_fp8_rows("swiglu_fp8", out, values, scales);
}

void check_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                           const at::Tensor& grad_gate_up, bool /*recompute*/, bool gelu) {
  check_swiglu(gate_up, grad_out, gelu);
  check_tensors("swiglu_backward", {{"gate_up", gate_up}, {"grad_gate_up", grad_gate_up}});
  check_shape("swiglu_backward", {"grad_gate_up", grad_gate_up}, gate_up.sizes());
  check_dtype("swiglu_backward", {"grad_gate_up", grad_gate_up}, gate_up.scalar_type());
  TORCH_CHECK_VALUE(grad_gate_up.is_contiguous(),
                    "swiglu_backward: grad_gate_up must be contiguous");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("swiglu(Tensor gate_up, Tensor(a!) out, bool gelu=False) -> ()");
  m.def(
      "swiglu_fp8(Tensor gate_up, Tensor(a!) out, Tensor(b!) values, Tensor(c!) scales, "
      "bool power_of_2, bool keep, bool gelu=False) -> ()");
  m.def(
      "swiglu_backward(Tensor(a!) grad_out, Tensor gate_up, Tensor(b!) grad_gate_up, "
      "bool recompute=False, bool gelu=False) -> ()");
}

}  // namespace fastsft
