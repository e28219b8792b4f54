#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const at::Tensor& token_weights, double label_smoothing, const at::Tensor& loss,
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_weight,
    double beta, const std::optional<at::Tensor>& workspace,
    const std::optional<at::Tensor>& low_rank, const std::optional<at::Tensor>& low_rank_weight,
    const std::optional<at::Tensor>& grad_low_rank,
    const std::optional<at::Tensor>& grad_low_rank_weight, double low_rank_beta, double softcap) {
  FASTSFT_DISPATCH(linear_cross_entropy, hidden, weight, targets, token_weights, label_smoothing,
                   loss, grad_hidden, grad_weight, beta, workspace, low_rank, low_rank_weight,
                   grad_low_rank, grad_low_rank_weight, low_rank_beta, softcap);
}

namespace {

void check_low_rank(const char* op, const at::Tensor& hidden, const at::Tensor& weight,
                    const std::optional<at::Tensor>& rows, const std::optional<at::Tensor>& matrix,
                    const std::optional<at::Tensor>& grad_rows,
                    const std::optional<at::Tensor>& grad_matrix, bool gradients) {
  const bool present = rows.has_value();
  TORCH_CHECK_VALUE(matrix.has_value() == present &&
                        grad_rows.has_value() == (present && gradients) &&
                        grad_matrix.has_value() == (present && gradients),
                    op, ": low_rank, its weight and their gradients go together");
  if (!present) return;
  check_tensors(op, {{"hidden", hidden}, {"low_rank", *rows}, {"low_rank_weight", *matrix}});
  TORCH_CHECK_VALUE(rows->dim() == 2, op, ": low_rank must be a matrix, got ", rows->sizes());
  check_shape(op, {"low_rank", *rows}, {hidden.size(0), rows->size(1)});
  check_dtype(op, {"low_rank", *rows}, hidden.scalar_type());
  check_shape(op, {"low_rank_weight", *matrix}, {weight.size(0), rows->size(1)});
  check_dtype(op, {"low_rank_weight", *matrix}, hidden.scalar_type());
  if (!gradients) return;
  check_tensors(
      op,
      {{"hidden", hidden}, {"grad_low_rank", *grad_rows}, {"grad_low_rank_weight", *grad_matrix}});
  check_shape(op, {"grad_low_rank", *grad_rows}, rows->sizes());
  check_dtype(op, {"grad_low_rank", *grad_rows}, hidden.scalar_type());
  check_shape(op, {"grad_low_rank_weight", *grad_matrix}, matrix->sizes());
  check_dtype(op, {"grad_low_rank_weight", *grad_matrix}, at::kFloat);
}

}  // namespace

void check_linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const at::Tensor& token_weights, double label_smoothing, const at::Tensor& loss,
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_weight,
    double beta, const std::optional<at::Tensor>& workspace,
    const std::optional<at::Tensor>& low_rank, const std::optional<at::Tensor>& low_rank_weight,
    const std::optional<at::Tensor>& grad_low_rank,
    const std::optional<at::Tensor>& grad_low_rank_weight, double softcap) {
  constexpr const char* kOp = "linear_cross_entropy";
  check_tensors(kOp, {{"hidden", hidden},
                      {"weight", weight},
                      {"targets", targets},
                      {"token_weights", token_weights},
                      {"loss", loss}});
  check_compute_dtype(kOp, {"hidden", hidden});
  TORCH_CHECK_VALUE(hidden.dim() == 2 && weight.dim() == 2, kOp,
                    ": hidden and weight must be matrices, got ", hidden.sizes(), " and ",
                    weight.sizes());
  check_dtype(kOp, {"weight", weight}, hidden.scalar_type());
  check_shape(kOp, {"weight", weight}, {weight.size(0), hidden.size(1)});
  check_shape(kOp, {"targets", targets}, {hidden.size(0)});
  check_dtype(kOp, {"targets", targets}, at::kLong);
  check_shape(kOp, {"token_weights", token_weights}, {hidden.size(0)});
  check_dtype(kOp, {"token_weights", token_weights}, at::kFloat);
  check_shape(kOp, {"loss", loss}, {1});
  check_dtype(kOp, {"loss", loss}, at::kDouble);
  TORCH_CHECK_VALUE(label_smoothing >= 0 && label_smoothing < 1, kOp, ": label_smoothing is ",
                    label_smoothing, ", expected [0, 1)");
  TORCH_CHECK_VALUE(softcap >= 0, kOp, ": softcap is ", softcap,
                    ", expected the bound of the logits, or 0 for none");
  TORCH_CHECK_VALUE(grad_hidden.has_value() || !grad_weight.has_value(), kOp,
                    ": grad_weight is not made without grad_hidden");
  check_low_rank(kOp, hidden, weight, low_rank, low_rank_weight, grad_low_rank,
                 grad_low_rank_weight, grad_hidden.has_value());
  if (workspace) {
    check_tensors(kOp, {{"hidden", hidden}, {"workspace", *workspace}});
    check_dtype(kOp, {"workspace", *workspace}, at::kByte);
  }
  if (!grad_hidden) return;
  check_tensors(kOp, {{"hidden", hidden}, {"grad_hidden", *grad_hidden}});
  check_shape(kOp, {"grad_hidden", *grad_hidden}, hidden.sizes());
  check_dtype(kOp, {"grad_hidden", *grad_hidden}, hidden.scalar_type());
  if (!grad_weight) return;
  check_tensors(kOp, {{"hidden", hidden}, {"grad_weight", *grad_weight}});
  check_shape(kOp, {"grad_weight", *grad_weight}, weight.sizes());
  check_dtype(kOp, {"grad_weight", *grad_weight}, at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, Tensor token_weights, "
      "float "
      "label_smoothing, Tensor(a!) loss, Tensor(b!)? grad_hidden, Tensor(c!)? grad_weight, float "
      "beta, Tensor(d!)? workspace=None, Tensor? low_rank=None, Tensor? low_rank_weight=None, "
      "Tensor(e!)? grad_low_rank=None, Tensor(f!)? grad_low_rank_weight=None, float "
      "low_rank_beta=0.0, float softcap=0.0) -> ()");
}

}  // namespace fastsft
