#include "ops/routing/routing.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

void check_contiguous(const char* op, std::initializer_list<Arg> args) {
  for (const Arg& arg : args) {
    TORCH_CHECK_VALUE(arg.tensor.is_contiguous(), op, ": ", arg.name, " must be contiguous");
  }
}

// Checks logits [tokens, experts] and tensors [tokens, chosen].
void check_choice(const char* op, const Arg& logits, const Arg& weights, const Arg& chosen) {
  check_tensors(op, {logits, weights, chosen});
  check_compute_dtype(op, logits);
  check_dtype(op, chosen, at::kInt);
  TORCH_CHECK_VALUE(logits.tensor.dim() == 2 && chosen.tensor.dim() == 2, op, ": ", logits.name,
                    " must be [tokens, experts] and ", chosen.name, " [tokens, chosen], got ",
                    logits.tensor.sizes(), " and ", chosen.tensor.sizes());
  const int64_t experts = logits.tensor.size(1), most = std::min<int64_t>(experts, kMostChosen);
  TORCH_CHECK_VALUE(experts >= 1 && experts <= kMostExperts, op, ": ", experts,
                    " experts, expected 1 to ", kMostExperts);
  TORCH_CHECK_VALUE(chosen.tensor.size(1) >= 1 && chosen.tensor.size(1) <= most, op, ": ",
                    chosen.tensor.size(1), " chosen experts a token, expected 1 to ", most);
  check_shape(op, chosen, {logits.tensor.size(0), chosen.tensor.size(1)});
  check_shape(op, weights, chosen.tensor.sizes());
  check_contiguous(op, {logits, weights, chosen});
}

}  // namespace

void route_tokens(const at::Tensor& logits, const at::Tensor& weights,
                  const at::Tensor& chosen_experts, bool normalize) {
  FASTSFT_DISPATCH(route_tokens, logits, weights, chosen_experts, normalize);
}

void route_tokens_backward(const at::Tensor& grad_weights, const at::Tensor& logits,
                           const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                           bool normalize) {
  FASTSFT_DISPATCH(route_tokens_backward, grad_weights, logits, chosen_experts, grad_logits,
                   normalize);
}

void group_pairs(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                 const at::Tensor& pairs, const at::Tensor& rows) {
  FASTSFT_DISPATCH(group_pairs, chosen_experts, offsets, pairs, rows);
}

void check_route_tokens(const at::Tensor& logits, const at::Tensor& weights,
                        const at::Tensor& chosen_experts, bool /*normalize*/) {
  constexpr const char* kOp = "route_tokens";
  check_choice(kOp, {"logits", logits}, {"weights", weights}, {"chosen_experts", chosen_experts});
  check_dtype(kOp, {"weights", weights}, logits.scalar_type());
}

void check_route_tokens_backward(const at::Tensor& grad_weights, const at::Tensor& logits,
                                 const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                                 bool /*normalize*/) {
  constexpr const char* kOp = "route_tokens_backward";
  check_choice(kOp, {"logits", logits}, {"grad_weights", grad_weights},
               {"chosen_experts", chosen_experts});
  check_dtype(kOp, {"grad_weights", grad_weights}, at::kFloat);
  check_tensors(kOp, {{"logits", logits}, {"grad_logits", grad_logits}});
  check_dtype(kOp, {"grad_logits", grad_logits}, logits.scalar_type());
  check_shape(kOp, {"grad_logits", grad_logits}, logits.sizes());
  check_contiguous(kOp, {{"grad_logits", grad_logits}});
}

void check_group_pairs(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                       const at::Tensor& pairs, const at::Tensor& rows) {
  constexpr const char* kOp = "group_pairs";
  const std::initializer_list<Arg> args = {
      {"chosen_experts", chosen_experts}, {"offsets", offsets}, {"pairs", pairs}, {"rows", rows}};
  check_tensors(kOp, args);
  for (const Arg& arg : args) check_dtype(kOp, arg, at::kInt);
  check_contiguous(kOp, args);
  TORCH_CHECK_VALUE(chosen_experts.dim() == 2, kOp, ": chosen_experts has shape ",
                    chosen_experts.sizes(), ", expected [tokens, chosen]");
  TORCH_CHECK_VALUE(offsets.dim() == 1 && offsets.size(0) >= 2, kOp, ": offsets has shape ",
                    offsets.sizes(), ", expected [experts + 1]");
  check_shape(kOp, {"pairs", pairs}, {chosen_experts.numel()});
  check_shape(kOp, {"rows", rows}, chosen_experts.sizes());
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "route_tokens(Tensor logits, Tensor(a!) weights, Tensor(b!) chosen_experts, bool normalize) "
      "-> ()");
  m.def(
      "route_tokens_backward(Tensor grad_weights, Tensor logits, Tensor chosen_experts, "
      "Tensor(a!) grad_logits, bool normalize) -> ()");
  m.def(
      "group_pairs(Tensor chosen_experts, Tensor(a!) offsets, Tensor(b!) pairs, Tensor(c!) rows) "
      "-> ()");
}

}  // namespace fastsft
