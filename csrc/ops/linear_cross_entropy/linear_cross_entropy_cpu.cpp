#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <torch/library.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/cpu/elements.h"
#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/softmax_rows.h"
#include "ops/gemm/gemm.h"
#include "ops/linear_cross_entropy/logits_workspace.h"

namespace fastsft {
namespace {

struct LossRule {
  float smoothing, softcap;  // softcap 0: none
  bool gradient;

  // Returns the loss of a row and overwrites the row with its gradient.
  double loss_of(float* row, int64_t vocab, int64_t target, float weight) const {
    if (softcap == 0)
      return cpu::cross_entropy_row(row, vocab, target, weight, smoothing, gradient);
    return cpu::capped_cross_entropy_row(row, vocab, target, weight, smoothing, softcap, gradient);
  }

  // The same for a row of 16-bit logits. `wide` is scratch memory for the row.
  template <typename T>
  double loss_of(T* row, int64_t vocab, int64_t target, float weight, float* wide) const {
    cpu::widen_range(row, wide, vocab);
    const double loss = loss_of(wide, vocab, target, weight);
    if (gradient) cpu::narrow_range(wide, row, vocab);
    return loss;
  }
};

// Returns the loss summed over the rows and overwrites the logits with their gradient. Losses are
// added in row order, so the result does not depend on the thread count.
template <typename T>
double row_losses(const at::Tensor& logits, const int64_t* targets, const float* weights,
                  const LossRule& rule) {
  constexpr bool kNarrow = !std::is_same_v<T, float>;
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  std::vector<double> losses(static_cast<size_t>(rows));
  cpu::Scratch scratch(kNarrow ? cpu::loss_row_floats(vocab, at::get_num_threads()) : 0);
  const at::Tensor wide = scratch.take({kNarrow ? at::get_num_threads() : 0, vocab});
  at::parallel_for(0, rows, cpu::rows_per_task(vocab), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      TORCH_CHECK_VALUE(targets[i] >= 0 && targets[i] < vocab, "linear_cross_entropy: target ",
                        targets[i], " is not in a vocabulary of ", vocab);
      T* row = logits.data_ptr<T>() + i * vocab;
      double& loss = losses[static_cast<size_t>(i)];
      if constexpr (kNarrow) {
        float* mine = wide.data_ptr<float>() + at::get_thread_num() * vocab;
        loss = rule.loss_of(row, vocab, targets[i], weights[i], mine);
      } else {
        loss = rule.loss_of(row, vocab, targets[i], weights[i]);
      }
    }
  });
  double sum = 0;
  for (double loss : losses) sum += loss;
  return sum;
}

void linear_cross_entropy_cpu(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const at::Tensor& token_weights, double label_smoothing, const at::Tensor& loss,
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_weight,
    double beta, const std::optional<at::Tensor>& workspace,
    const std::optional<at::Tensor>& low_rank, const std::optional<at::Tensor>& low_rank_weight,
    const std::optional<at::Tensor>& grad_low_rank,
    const std::optional<at::Tensor>& grad_low_rank_weight, double low_rank_beta, double softcap) {
  check_linear_cross_entropy(
      LinearCrossEntropyArgs(hidden, weight, targets, token_weights, label_smoothing, loss,
                             grad_hidden, grad_weight, beta, workspace, low_rank, low_rank_weight,
                             grad_low_rank, grad_low_rank_weight, low_rank_beta, softcap));
  const int64_t tokens = hidden.size(0), step = cpu::logit_chunk_rows(tokens, weight.size(0));
  if (tokens == 0) {  // no chunk will apply beta
    scale_gradient(grad_weight, beta);
    scale_gradient(grad_low_rank_weight, low_rank_beta);
    return;
  }
  const LogitsWorkspace buffers =
      logits_workspace(workspace, hidden, step, weight.size(0), TokenLosses::kNone);
  // For each chunk of tokens:
  //   logits = rows weight^T;  losses from the logits, which become their gradient
  //   grad_hidden = grad_logits weight;  grad_weight = beta * grad_weight + grad_logits^T rows
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const int64_t count = std::min(step, tokens - begin);
    const at::Tensor rows = hidden.narrow(0, begin, count),
                     logits = buffers.logits.narrow(0, 0, count);
    gemm(rows, weight, logits, false, true, 0.0);
    if (low_rank) {
      gemm(low_rank->narrow(0, begin, count), *low_rank_weight, logits, false, true, 1.0);
    }
    cpu::dispatch(logits.scalar_type(), [&]<typename T>() {
      *loss.data_ptr<double>() += row_losses<T>(
          logits, targets.data_ptr<int64_t>() + begin, token_weights.data_ptr<float>() + begin,
          {static_cast<float>(label_smoothing), static_cast<float>(softcap),
           grad_hidden.has_value()});
    });
    if (!grad_hidden) continue;
    const at::Tensor& grad_logits = logits;
    gemm(grad_logits, weight, grad_hidden->narrow(0, begin, count), false, false, 0.0);
    if (grad_weight) gemm(grad_logits, rows, *grad_weight, true, false, begin == 0 ? beta : 1.0);
    if (!low_rank) continue;
    gemm(grad_logits, *low_rank_weight, grad_low_rank->narrow(0, begin, count), false, false, 0.0);
    gemm(grad_logits, low_rank->narrow(0, begin, count), *grad_low_rank_weight, true, false,
         begin == 0 ? low_rank_beta : 1.0);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("linear_cross_entropy", &linear_cross_entropy_cpu); }

}  // namespace fastsft
