#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <torch/library.h>

#include "ops/check.h"
#include "ops/dispatch.h"

namespace fastsft {

void linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                          const at::Tensor& targets, const at::Tensor& token_weights,
                          double label_smoothing, const at::Tensor& loss,
                          const std::optional<at::Tensor>& grad_hidden,
                          const std::optional<at::Tensor>& grad_weight, double beta,
                          const std::optional<at::Tensor>& workspace) {
  FASTSFT_DISPATCH(linear_cross_entropy, hidden, weight, targets, token_weights, label_smoothing,
                   loss, grad_hidden, grad_weight, beta, workspace);
}

void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, const at::Tensor& token_weights,
                                double label_smoothing, const at::Tensor& loss,
                                const std::optional<at::Tensor>& grad_hidden,
                                const std::optional<at::Tensor>& grad_weight, double beta,
                                const std::optional<at::Tensor>& workspace) {
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
  TORCH_CHECK_VALUE(grad_hidden.has_value() == grad_weight.has_value(), kOp,
                    ": grad_hidden and grad_weight go together");
  if (workspace) {
    check_tensors(kOp, {{"hidden", hidden}, {"workspace", *workspace}});
    check_dtype(kOp, {"workspace", *workspace}, at::kByte);
  }
  if (!grad_hidden) return;
  check_tensors(kOp,
                {{"hidden", hidden}, {"grad_hidden", *grad_hidden}, {"grad_weight", *grad_weight}});
  check_shape(kOp, {"grad_hidden", *grad_hidden}, hidden.sizes());
  check_dtype(kOp, {"grad_hidden", *grad_hidden}, hidden.scalar_type());
  check_shape(kOp, {"grad_weight", *grad_weight}, weight.sizes());
  check_dtype(kOp, {"grad_weight", *grad_weight}, at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, Tensor token_weights, "
      "float "
      "label_smoothing, Tensor(a!) loss, Tensor(b!)? grad_hidden, Tensor(c!)? grad_weight, float "
      "beta, Tensor(d!)? workspace=None) -> ()");
}

}  // namespace fastsft
