#include "ops/expert_rows/expert_rows.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

// Checks a contiguous matrix of the compute dtype.
void check_matrix(const char* op, const Arg& arg, at::ScalarType dtype) {
  check_dtype(op, arg, dtype);
  TORCH_CHECK_VALUE(arg.tensor.dim() == 2 && arg.tensor.is_contiguous(), op, ": ", arg.name,
                    " has shape ", arg.tensor.sizes(), ", expected a contiguous matrix");
}

void check_index(const char* op, const Arg& arg, at::IntArrayRef shape) {
  check_dtype(op, arg, at::kInt);
  check_shape(op, arg, shape);
  TORCH_CHECK_VALUE(arg.tensor.is_contiguous(), op, ": ", arg.name, " must be contiguous");
}

}  // namespace

void gather_rows(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out) {
  FASTSFT_DISPATCH(gather_rows, x, pairs, out);
}

void combine_rows(const at::Tensor& grouped, const at::Tensor& rows,
                  const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                  const at::Tensor& out) {
  FASTSFT_DISPATCH(combine_rows, grouped, rows, weights, addend, out);
}

void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                            const at::Tensor& weights, const at::Tensor& pairs,
                            const at::Tensor& grad_weights) {
  FASTSFT_DISPATCH(expert_swiglu_backward, grad_out, gate_up, weights, pairs, grad_weights);
}

void check_gather_rows(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out) {
  constexpr const char* kOp = "gather_rows";
  check_tensors(kOp, {{"x", x}, {"pairs", pairs}, {"out", out}});
  check_compute_dtype(kOp, {"x", x});
  check_matrix(kOp, {"x", x}, x.scalar_type());
  check_matrix(kOp, {"out", out}, x.scalar_type());
  const int64_t tokens = x.size(0), rows = out.size(0);
  TORCH_CHECK_VALUE(tokens == 0 ? rows == 0 : rows % tokens == 0, kOp, ": ", rows, " rows of ",
                    tokens, " tokens, expected the same number for each");
  check_shape(kOp, {"out", out}, {rows, x.size(1)});
  check_index(kOp, {"pairs", pairs}, {rows});
}

void check_combine_rows(const at::Tensor& grouped, const at::Tensor& rows,
                        const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                        const at::Tensor& out) {
  constexpr const char* kOp = "combine_rows";
  check_tensors(kOp, {{"grouped", grouped}, {"rows", rows}, {"addend", addend}, {"out", out}});
  check_compute_dtype(kOp, {"grouped", grouped});
  const at::ScalarType dtype = grouped.scalar_type();
  check_matrix(kOp, {"grouped", grouped}, dtype);
  check_matrix(kOp, {"addend", addend}, dtype);
  check_matrix(kOp, {"out", out}, dtype);
  TORCH_CHECK_VALUE(rows.dim() == 2 && rows.numel() == grouped.size(0), kOp, ": rows has shape ",
                    rows.sizes(), ", expected [tokens, chosen] for ", grouped.size(0), " rows");
  check_index(kOp, {"rows", rows}, rows.sizes());
  check_shape(kOp, {"out", out}, {rows.size(0), grouped.size(1)});
  check_shape(kOp, {"addend", addend}, out.sizes());
  if (!weights) return;
  check_tensors(kOp, {{"grouped", grouped}, {"weights", *weights}});
  check_matrix(kOp, {"weights", *weights}, dtype);
  check_shape(kOp, {"weights", *weights}, rows.sizes());
}

void check_expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                  const at::Tensor& weights, const at::Tensor& pairs,
                                  const at::Tensor& grad_weights) {
  constexpr const char* kOp = "expert_swiglu_backward";
  check_tensors(kOp, {{"grad_out", grad_out},
                      {"gate_up", gate_up},
                      {"weights", weights},
                      {"pairs", pairs},
                      {"grad_weights", grad_weights}});
  check_compute_dtype(kOp, {"grad_out", grad_out});
  const at::ScalarType dtype = grad_out.scalar_type();
  check_matrix(kOp, {"grad_out", grad_out}, dtype);
  check_matrix(kOp, {"gate_up", gate_up}, dtype);
  check_matrix(kOp, {"weights", weights}, dtype);
  check_matrix(kOp, {"grad_weights", grad_weights}, at::kFloat);
  check_shape(kOp, {"gate_up", gate_up}, {grad_out.size(0), 2 * grad_out.size(1)});
  check_index(kOp, {"pairs", pairs}, {grad_out.size(0)});
  TORCH_CHECK_VALUE(weights.numel() == grad_out.size(0), kOp, ": weights has shape ",
                    weights.sizes(), ", expected one for each of ", grad_out.size(0), " rows");
  check_shape(kOp, {"grad_weights", grad_weights}, weights.sizes());
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("gather_rows(Tensor x, Tensor pairs, Tensor(a!) out) -> ()");
  m.def(
      "combine_rows(Tensor grouped, Tensor rows, Tensor? weights, Tensor addend, Tensor(a!) out) "
      "-> ()");
  m.def(
      "expert_swiglu_backward(Tensor(a!) grad_out, Tensor(b!) gate_up, Tensor weights, "
      "Tensor pairs, Tensor(c!) grad_weights) -> ()");
}

}  // namespace fastsft
