#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// Head and loss in one: logits = hidden weight^T, never whole in memory; with a `softcap` c > 0,
// logits = c * tanh(hidden weight^T / c). With p =
// softmax(logits[i]), t = targets[i], s = label_smoothing and V the vocabulary:
//   loss += sum_i token_weights[i] * ((1 - s) * -log p[t] + s * mean over V of -log p)
//   grad_hidden = d loss / d hidden;   grad_weight = beta * grad_weight + d loss / d weight
//   hidden [tokens, hidden] and weight [V, hidden] float32, bfloat16 or float16; targets [tokens]
//   int64; token_weights [tokens] float32; loss [1] float64 is added to; grad_hidden like hidden;
//   grad_weight [V, hidden] float32, absent where the weight is frozen. Without grad_hidden, only
//   the loss is computed.
// `low_rank`: hidden weight^T + low_rank low_rank_weight^T instead, [tokens, r] and [V, r], with
// gradients like those of hidden and weight; low_rank_beta is the beta of grad_low_rank_weight.
// Logits and softmax are float32. `workspace` (uint8, any content): memory for a chunk of logits,
// at least logits_workspace.h's bytes; without it the op allocates.
void linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                          const at::Tensor& targets, const at::Tensor& token_weights,
                          double label_smoothing, const at::Tensor& loss,
                          const std::optional<at::Tensor>& grad_hidden,
                          const std::optional<at::Tensor>& grad_weight, double beta,
                          const std::optional<at::Tensor>& workspace = std::nullopt,
                          const std::optional<at::Tensor>& low_rank = std::nullopt,
                          const std::optional<at::Tensor>& low_rank_weight = std::nullopt,
                          const std::optional<at::Tensor>& grad_low_rank = std::nullopt,
                          const std::optional<at::Tensor>& grad_low_rank_weight = std::nullopt,
                          double low_rank_beta = 0, double softcap = 0);

void check_linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const at::Tensor& token_weights, double label_smoothing, const at::Tensor& loss,
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_weight,
    double beta, const std::optional<at::Tensor>& workspace,
    const std::optional<at::Tensor>& low_rank, const std::optional<at::Tensor>& low_rank_weight,
    const std::optional<at::Tensor>& grad_low_rank,
    const std::optional<at::Tensor>& grad_low_rank_weight, double softcap);

}  // namespace fastsft
