#include "ops/grouped_gemm/grouped_gemm.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

void check_groups(const char* op, const Arg& rows, const Arg& other, const Arg& matrices,
                  const at::Tensor& offsets) {
  check_tensors(op, {rows, other, matrices, {"offsets", offsets}});
  check_compute_dtype(op, rows);
  check_dtype(op, other, rows.tensor.scalar_type());
  check_dtype(op, {"offsets", offsets}, at::kInt);
  TORCH_CHECK_VALUE(rows.tensor.dim() == 2 && other.tensor.dim() == 2 && matrices.tensor.dim() == 3,
                    op, ": ", rows.name, " and ", other.name, " must be matrices and ",
                    matrices.name, " a stack of matrices, got ", rows.tensor.sizes(), ", ",
                    other.tensor.sizes(), " and ", matrices.tensor.sizes());
  check_shape(op, {"offsets", offsets}, {matrices.tensor.size(0) + 1});
  check_shape(op, other, {rows.tensor.size(0), other.tensor.size(1)});
  for (const Arg* arg : {&rows, &other, &matrices}) {
    TORCH_CHECK_VALUE(arg->tensor.is_contiguous(), op, ": ", arg->name, " must be contiguous");
  }
}

}  // namespace

void grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                  const at::Tensor& out, bool transpose) {
  FASTSFT_DISPATCH(grouped_gemm, x, weights, offsets, out, transpose);
}

void grouped_weight_gradient(const at::Tensor& grad_y, const at::Tensor& x,
                             const at::Tensor& offsets, const at::Tensor& grad_weights,
                             double beta) {
  FASTSFT_DISPATCH(grouped_weight_gradient, grad_y, x, offsets, grad_weights, beta);
}

void check_grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                        const at::Tensor& out, bool transpose) {
  constexpr const char* kOp = "grouped_gemm";
  check_groups(kOp, {"x", x}, {"out", out}, {"weights", weights}, offsets);
  check_dtype(kOp, {"weights", weights}, x.scalar_type());
  const int64_t outputs = out.size(1), inputs = x.size(1);
  check_shape(kOp, {"weights", weights},
              {weights.size(0), transpose ? outputs : inputs, transpose ? inputs : outputs});
}

void check_grouped_weight_gradient(const at::Tensor& grad_y, const at::Tensor& x,
                                   const at::Tensor& offsets, const at::Tensor& grad_weights,
                                   double /*beta*/) {
  constexpr const char* kOp = "grouped_weight_gradient";
  check_groups(kOp, {"grad_y", grad_y}, {"x", x}, {"grad_weights", grad_weights}, offsets);
  if (grad_weights.scalar_type() != at::kFloat) {
    check_dtype(kOp, {"grad_weights", grad_weights}, at::kBFloat16);
    check_dtype(kOp, {"x", x}, at::kBFloat16);
  }
  check_shape(kOp, {"grad_weights", grad_weights},
              {grad_weights.size(0), grad_y.size(1), x.size(1)});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "grouped_gemm(Tensor x, Tensor weights, Tensor offsets, Tensor(a!) out, bool transpose) -> "
      "()");
  m.def(
      "grouped_weight_gradient(Tensor grad_y, Tensor x, Tensor offsets, Tensor(a!) grad_weights, "
      "float beta) -> ()");
}

}  // namespace fastsft
