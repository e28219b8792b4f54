#include "ops/embedding/embedding.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

// Checks the arguments that forward and backward share: a table, ids, and one row per token.
void check_table(const char* op, const Arg& table, const at::Tensor& ids, const Arg& rows) {
  check_tensors(op, {table, {"ids", ids}, rows});
  check_compute_dtype(op, rows);
  check_dtype(op, {"ids", ids}, at::kLong);
  TORCH_CHECK_VALUE(table.tensor.dim() == 2 && ids.dim() == 1, op, ": ", table.name,
                    " must be [vocab, hidden] and ids [tokens]");
  check_shape(op, rows, {ids.size(0), table.tensor.size(1)});
  TORCH_CHECK_VALUE(table.tensor.is_contiguous() && rows.tensor.is_contiguous(), op, ": ",
                    table.name, " and ", rows.name, " must be contiguous");
}

}  // namespace

void embedding(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out) {
  FASTSFT_DISPATCH(embedding, weight, ids, out);
}

void embedding_backward(const at::Tensor& grad_out, const at::Tensor& ids,
                        const at::Tensor& grad_weight) {
  FASTSFT_DISPATCH(embedding_backward, grad_out, ids, grad_weight);
}

void check_embedding(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out) {
  check_table("embedding", {"weight", weight}, ids, {"out", out});
  check_dtype("embedding", {"weight", weight}, out.scalar_type());
}

void check_embedding_backward(const at::Tensor& grad_out, const at::Tensor& ids,
                              const at::Tensor& grad_weight) {
  check_table("embedding_backward", {"grad_weight", grad_weight}, ids, {"grad_out", grad_out});
  check_dtype("embedding_backward", {"grad_weight", grad_weight}, at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("embedding(Tensor weight, Tensor ids, Tensor(a!) out) -> ()");
  m.def("embedding_backward(Tensor grad_out, Tensor ids, Tensor(a!) grad_weight) -> ()");
}

}  // namespace fastsft
