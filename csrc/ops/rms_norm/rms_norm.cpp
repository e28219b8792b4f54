#include "ops/rms_norm/rms_norm.h"

#include <torch/library.h>

#include "ops/fp8/fp8.h"
#include "ops/schema.h"

namespace fastsft {

void rms_norm(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
              double eps, const OptionalTensor& sum, const at::Tensor& out, const at::Tensor& rstd,
              double offset) {
  FASTSFT_DISPATCH(rms_norm, x, residual, weight, eps, sum, out, rstd, offset);
}

void rms_norm_fp8(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                  double eps, const OptionalTensor& sum, const at::Tensor& out,
                  const at::Tensor& rstd, const at::Tensor& values, const at::Tensor& scales,
                  bool power_of_2, bool keep, double offset) {
  FASTSFT_DISPATCH(rms_norm_fp8, x, residual, weight, eps, sum, out, rstd, values, scales,
                   power_of_2, keep, offset);
}

void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& grad_x,
                       const OptionalTensor& grad_weight, double beta, bool recompute,
                       double offset) {
  FASTSFT_DISPATCH(rms_norm_backward, grad_out, x, weight, rstd, grad_x, grad_weight, beta,
                   recompute, offset);
}

void check_rms_norm(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                    double eps, const OptionalTensor& sum, const at::Tensor& out,
                    const at::Tensor& rstd, double /*offset*/) {
  constexpr const char* kOp = "rms_norm";
  check_tensors(kOp, {{"x", x}, {"weight", weight}, {"out", out}, {"rstd", rstd}});
  check_compute_dtype(kOp, {"x", x});
  TORCH_CHECK_VALUE(x.dim() == 2, kOp, ": x has ", x.dim(),
                    " dimensions, expected [tokens, hidden]");
  TORCH_CHECK_VALUE(residual.has_value() == sum.has_value(), kOp, ": residual and sum go together");
  check_shape(kOp, {"weight", weight}, {x.size(1)});
  check_shape(kOp, {"out", out}, x.sizes());
  check_shape(kOp, {"rstd", rstd}, {x.size(0)});
  check_dtype(kOp, {"weight", weight}, x.scalar_type());
  check_dtype(kOp, {"out", out}, x.scalar_type());
  check_dtype(kOp, {"rstd", rstd}, at::kFloat);
  TORCH_CHECK_VALUE(x.is_contiguous() && out.is_contiguous(), kOp,
                    ": x and out must be contiguous");
  if (!residual) return;
  check_tensors(kOp, {{"x", x}, {"residual", *residual}, {"sum", *sum}});
  for (const Arg& arg : {Arg{"residual", *residual}, Arg{"sum", *sum}}) {
    check_shape(kOp, arg, x.sizes());
    check_dtype(kOp, arg, x.scalar_type());
    TORCH_CHECK_VALUE(arg.tensor.is_contiguous(), kOp, ": ", arg.name, " must be contiguous");
  }
}

void check_rms_norm_fp8(const at::Tensor& x, const OptionalTensor& residual,
                        const at::Tensor& weight, double eps, const OptionalTensor& sum,
                        const at::Tensor& out, const at::Tensor& rstd, const at::Tensor& values,
                        const at::Tensor& scales, bool /*power_of_2*/, bool /*keep*/,
                        double offset) {
  check_rms_norm(x, residual, weight, eps, sum, out, rstd, offset);
  check_dtype("rms_norm_fp8", {"x", x}, at::kBFloat16);
  check_fp8_rows("rms_norm_fp8", out, values, scales);
}

void check_rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x,
                             const at::Tensor& weight, const at::Tensor& rstd,
                             const at::Tensor& grad_x, const OptionalTensor& grad_weight,
                             double beta, bool /*recompute*/, double /*offset*/) {
  constexpr const char* kOp = "rms_norm_backward";
  check_tensors(
      kOp,
      {{"grad_out", grad_out}, {"x", x}, {"weight", weight}, {"rstd", rstd}, {"grad_x", grad_x}});
  check_compute_dtype(kOp, {"x", x});
  TORCH_CHECK_VALUE(x.dim() == 2, kOp, ": x has ", x.dim(),
                    " dimensions, expected [tokens, hidden]");
  for (const Arg& arg : {Arg{"grad_out", grad_out}, Arg{"x", x}, Arg{"grad_x", grad_x}}) {
    check_shape(kOp, arg, x.sizes());
    check_dtype(kOp, arg, x.scalar_type());
    TORCH_CHECK_VALUE(arg.tensor.is_contiguous(), kOp, ": ", arg.name, " must be contiguous");
  }
  check_shape(kOp, {"weight", weight}, {x.size(1)});
  check_dtype(kOp, {"weight", weight}, x.scalar_type());
  check_shape(kOp, {"rstd", rstd}, {x.size(0)});
  check_dtype(kOp, {"rstd", rstd}, at::kFloat);
  if (!grad_weight) return;
  check_tensors(kOp, {{"x", x}, {"grad_weight", *grad_weight}});
  check_shape(kOp, {"grad_weight", *grad_weight}, {x.size(1)});
  check_dtype(kOp, {"grad_weight", *grad_weight}, at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps, Tensor(a!)? sum, "
      "Tensor(b!) out, Tensor(c!) rstd, float offset=0.0) -> ()");
  m.def(
      "rms_norm_fp8(Tensor x, Tensor? residual, Tensor weight, float eps, Tensor(a!)? sum, "
      "Tensor(b!) out, Tensor(c!) rstd, Tensor(d!) values, Tensor(e!) scales, bool power_of_2, "
      "bool keep, float offset=0.0) -> ()");
  m.def(
      "rms_norm_backward(Tensor(a!) grad_out, Tensor x, Tensor weight, Tensor rstd, Tensor(b!) "
      "grad_x, "
      "Tensor(c!)? grad_weight, float beta, bool recompute=False, float offset=0.0) -> ()");
}

}  // namespace fastsft
