#include "ops/bias/bias.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void add_bias(const at::Tensor& x, const at::Tensor& bias) { FASTSFT_DISPATCH(add_bias, x, bias); }

void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta) {
  FASTSFT_DISPATCH(bias_backward, grad, grad_bias, beta);
}

void check_add_bias(const at::Tensor& x, const at::Tensor& bias) {
  constexpr const char* kOp = "add_bias";
  check_tensors(kOp, {{"x", x}, {"bias", bias}});
  check_compute_dtype(kOp, {"x", x});
  check_dtype(kOp, {"bias", bias}, x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() == 2 && x.is_contiguous(), kOp, ": x has shape ", x.sizes(),
                    ", expected contiguous [tokens, width]");
  check_shape(kOp, {"bias", bias}, {x.size(1)});
}

void check_bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta) {
  constexpr const char* kOp = "bias_backward";
  check_tensors(kOp, {{"grad", grad}, {"grad_bias", grad_bias}});
  check_compute_dtype(kOp, {"grad", grad});
  TORCH_CHECK_VALUE(grad.dim() == 2 && grad.is_contiguous(), kOp, ": grad has shape ", grad.sizes(),
                    ", expected contiguous [tokens, width]");
  check_shape(kOp, {"grad_bias", grad_bias}, {grad.size(1)});
  check_dtype(kOp, {"grad_bias", grad_bias}, at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("add_bias(Tensor(a!) x, Tensor bias) -> ()");
  m.def("bias_backward(Tensor grad, Tensor(a!) grad_bias, float beta) -> ()");
}

}  // namespace fastsft
