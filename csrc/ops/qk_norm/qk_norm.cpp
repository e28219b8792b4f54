#include "ops/qk_norm/qk_norm.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

void check_heads(const char* op, const at::Tensor& x, const Arg& other, const at::Tensor& weight,
                 const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads) {
  check_tensors(op, {{"x", x}, other, {"weight", weight}, {"rstd", rstd}});
  check_compute_dtype(op, {"x", x});
  check_dtype(op, other, x.scalar_type());
  check_dtype(op, {"weight", weight}, x.scalar_type());
  check_dtype(op, {"rstd", rstd}, at::kFloat);
  check_shape(op, other, x.sizes());
  TORCH_CHECK_VALUE(x.dim() == 2 && weight.dim() == 2 && weight.size(0) == 2, op, ": x has shape ",
                    x.sizes(), " and weight ", weight.sizes(),
                    ", expected [tokens, width] and [2, head_dim]");
  const int64_t heads = num_heads + num_key_value_heads;
  TORCH_CHECK_VALUE(num_heads > 0 && num_key_value_heads > 0, op, ": ", num_heads, " query and ",
                    num_key_value_heads, " key heads, expected one or more of each");
  TORCH_CHECK_VALUE(heads * weight.size(1) <= x.size(1), op, ": ", heads, " heads of ",
                    weight.size(1), " do not fit a row of ", x.size(1));
  check_shape(op, {"rstd", rstd}, {x.size(0), heads});
  TORCH_CHECK_VALUE(x.is_contiguous() && other.tensor.is_contiguous() && weight.is_contiguous() &&
                        rstd.is_contiguous(),
                    op, ": x, ", other.name, ", weight and rstd must be contiguous");
}

}  // namespace

void qk_norm(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
             int64_t num_key_value_heads, double eps, const at::Tensor& out, const at::Tensor& rstd,
             double offset) {
  FASTSFT_DISPATCH(qk_norm, x, weight, num_heads, num_key_value_heads, eps, out, rstd, offset);
}

void qk_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                      const std::optional<at::Tensor>& grad_weight, double beta, double offset) {
  FASTSFT_DISPATCH(qk_norm_backward, grad, x, weight, rstd, num_heads, num_key_value_heads,
                   grad_weight, beta, offset);
}

void check_qk_norm(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
                   int64_t num_key_value_heads, double eps, const at::Tensor& out,
                   const at::Tensor& rstd, double /*offset*/) {
  check_heads("qk_norm", x, {"out", out}, weight, rstd, num_heads, num_key_value_heads);
}

void check_qk_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                            const std::optional<at::Tensor>& grad_weight, double beta,
                            double /*offset*/) {
  constexpr const char* kOp = "qk_norm_backward";
  check_heads(kOp, x, {"grad", grad}, weight, rstd, num_heads, num_key_value_heads);
  if (!grad_weight) return;
  check_tensors(kOp, {{"x", x}, {"grad_weight", *grad_weight}});
  check_shape(kOp, {"grad_weight", *grad_weight}, weight.sizes());
  check_dtype(kOp, {"grad_weight", *grad_weight}, at::kFloat);
  TORCH_CHECK_VALUE(grad_weight->is_contiguous(), kOp, ": grad_weight must be contiguous");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "qk_norm(Tensor x, Tensor weight, int num_heads, int num_key_value_heads, float eps, "
      "Tensor(a!) out, Tensor(b!) rstd, float offset=0.0) -> ()");
  m.def(
      "qk_norm_backward(Tensor(a!) grad, Tensor x, Tensor weight, Tensor rstd, int num_heads, "
      "int num_key_value_heads, Tensor(b!)? grad_weight, float beta, float offset=0.0) -> ()");
}

}  // namespace fastsft
