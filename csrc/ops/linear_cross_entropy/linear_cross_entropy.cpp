#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

constexpr const char* kLossOp = "linear_cross_entropy";
using Optional = std::optional<at::Tensor>;
using Schema = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                    double, const at::Tensor&, const Optional&, const Optional&, double,
                    const Optional&, const Optional&, const Optional&, const Optional&,
                    const Optional&, double, double);

void check_low_rank(const LinearCrossEntropyArgs& a) {
  const bool present = a.low_rank.has_value(), gradients = a.grad_hidden.has_value();
  TORCH_CHECK_VALUE(a.low_rank_weight.has_value() == present &&
                        a.grad_low_rank.has_value() == (present && gradients) &&
                        a.grad_low_rank_weight.has_value() == (present && gradients),
                    kLossOp, ": low_rank, its weight and their gradients go together");
  if (!present) return;
  const at::Tensor &rows = *a.low_rank, &matrix = *a.low_rank_weight;
  check_tensors(kLossOp, {{"hidden", a.hidden}, {"low_rank", rows}, {"low_rank_weight", matrix}});
  TORCH_CHECK_VALUE(rows.dim() == 2, kLossOp, ": low_rank must be a matrix, got ", rows.sizes());
  check_shape(kLossOp, {"low_rank", rows}, {a.hidden.size(0), rows.size(1)});
  check_dtype(kLossOp, {"low_rank", rows}, a.hidden.scalar_type());
  check_shape(kLossOp, {"low_rank_weight", matrix}, {a.weight.size(0), rows.size(1)});
  check_dtype(kLossOp, {"low_rank_weight", matrix}, a.hidden.scalar_type());
  if (!gradients) return;
  const Arg grad_rows{"grad_low_rank", *a.grad_low_rank};
  const Arg grad_matrix{"grad_low_rank_weight", *a.grad_low_rank_weight};
  check_tensors(kLossOp, {{"hidden", a.hidden}, grad_rows, grad_matrix});
  check_shape(kLossOp, grad_rows, rows.sizes());
  check_dtype(kLossOp, grad_rows, a.hidden.scalar_type());
  check_shape(kLossOp, grad_matrix, matrix.sizes());
  check_dtype(kLossOp, grad_matrix, at::kFloat);
}

void check_inputs(const LinearCrossEntropyArgs& a) {
  const auto &hidden = a.hidden, &weight = a.weight;
  check_tensors(kLossOp, {{"hidden", hidden},
                          {"weight", weight},
                          {"targets", a.targets},
                          {"token_weights", a.token_weights},
                          {"loss", a.loss}});
  check_compute_dtype(kLossOp, {"hidden", hidden});
  TORCH_CHECK_VALUE(hidden.dim() == 2 && weight.dim() == 2, kLossOp,
                    ": hidden and weight must be matrices, got ", hidden.sizes(), " and ",
                    weight.sizes());
  check_dtype(kLossOp, {"weight", weight}, hidden.scalar_type());
  check_shape(kLossOp, {"weight", weight}, {weight.size(0), hidden.size(1)});
  check_shape(kLossOp, {"targets", a.targets}, {hidden.size(0)});
  check_dtype(kLossOp, {"targets", a.targets}, at::kLong);
  check_shape(kLossOp, {"token_weights", a.token_weights}, {hidden.size(0)});
  check_dtype(kLossOp, {"token_weights", a.token_weights}, at::kFloat);
  check_shape(kLossOp, {"loss", a.loss}, {1});
  check_dtype(kLossOp, {"loss", a.loss}, at::kDouble);
  TORCH_CHECK_VALUE(a.label_smoothing >= 0 && a.label_smoothing < 1, kLossOp,
                    ": label_smoothing is ", a.label_smoothing, ", expected [0, 1)");
  TORCH_CHECK_VALUE(a.softcap >= 0, kLossOp, ": softcap is ", a.softcap,
                    ", expected the bound of the logits, or 0 for none");
}

void check_gradient(const char* name, const std::optional<at::Tensor>& gradient,
                    const at::Tensor& of, at::ScalarType dtype) {
  if (!gradient) return;
  check_tensors(kLossOp, {{"hidden", of}, {name, *gradient}});
  check_shape(kLossOp, {name, *gradient}, of.sizes());
  check_dtype(kLossOp, {name, *gradient}, dtype);
}

}  // namespace

void linear_cross_entropy(const LinearCrossEntropyArgs& a) {
  const trace::Span span(trace::Track::kCompute, kLossOp);
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("fastsft::linear_cross_entropy", "")
                                 .typed<Schema>();
  handle.call(a.hidden, a.weight, a.targets, a.token_weights, a.label_smoothing, a.loss,
              a.grad_hidden, a.grad_weight, a.beta, a.workspace, a.low_rank, a.low_rank_weight,
              a.grad_low_rank, a.grad_low_rank_weight, a.low_rank_beta, a.softcap);
}

void check_linear_cross_entropy(const LinearCrossEntropyArgs& a) {
  check_inputs(a);
  TORCH_CHECK_VALUE(a.grad_hidden.has_value() || !a.grad_weight.has_value(), kLossOp,
                    ": grad_weight is not made without grad_hidden");
  check_low_rank(a);
  if (a.workspace) {
    check_tensors(kLossOp, {{"hidden", a.hidden}, {"workspace", *a.workspace}});
    check_dtype(kLossOp, {"workspace", *a.workspace}, at::kByte);
  }
  check_gradient("grad_hidden", a.grad_hidden, a.hidden, a.hidden.scalar_type());
  check_gradient("grad_weight", a.grad_weight, a.weight, at::kFloat);
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
