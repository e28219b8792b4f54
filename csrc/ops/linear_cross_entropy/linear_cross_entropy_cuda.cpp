#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/gemm/gemm.h"
#include "ops/linear_cross_entropy/cross_entropy_launch.h"
#include "ops/linear_cross_entropy/logits_workspace.h"

namespace fastsft {
namespace {

at::Tensor part(const at::Tensor& buffer, int64_t rows, int64_t vocab) {
  return buffer.narrow(0, 0, rows).narrow(1, 0, vocab);
}

void linear_cross_entropy_cuda(
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
  const c10::cuda::CUDAGuard guard(hidden.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t tokens = hidden.size(0), vocab = weight.size(0);
  if (tokens == 0) {  // no chunk will apply beta
    scale_gradient(grad_weight, beta);
    scale_gradient(grad_low_rank_weight, low_rank_beta);
    return;
  }
  const cuda::LogitsPlan plan = cuda::plan_logits(tokens, vocab, hidden.element_size());
  const LogitsWorkspace chunks =
      logits_workspace(workspace, hidden, plan.rows, plan.stride, TokenLosses::kKept);
  // For each chunk of tokens:
  //   logits = rows weight^T;  losses from the logits, which become their gradient
  //   grad_hidden = grad_logits weight;  grad_weight = beta * grad_weight + grad_logits^T rows
  for (int64_t begin = 0; begin < tokens; begin += plan.rows) {
    const int64_t count = std::min(plan.rows, tokens - begin);
    const at::Tensor rows = hidden.narrow(0, begin, count);
    const at::Tensor logits = part(chunks.logits, count, vocab);
    gemm(rows, weight, logits, false, true, 0.0);
    if (low_rank) {
      gemm(low_rank->narrow(0, begin, count), *low_rank_weight, logits, false, true, 1.0);
    }
    cuda::launch_cross_entropy({.logits = logits.data_ptr(),
                                .targets = targets.data_ptr<int64_t>() + begin,
                                .weights = token_weights.data_ptr<float>() + begin,
                                .losses = chunks.losses.data_ptr<double>() + begin,
                                .gradient = grad_hidden.has_value(),
                                .rows = count,
                                .vocab = vocab,
                                .stride = plan.stride,
                                .smoothing = static_cast<float>(label_smoothing),
                                .softcap = static_cast<float>(softcap)},
                               cuda::dtype_of(logits), stream);
    if (!grad_hidden) continue;
    const at::Tensor& grad_logits = logits;
    gemm(grad_logits, weight, grad_hidden->narrow(0, begin, count), false, false, 0.0);
    if (grad_weight) gemm(grad_logits, rows, *grad_weight, true, false, begin == 0 ? beta : 1.0);
    if (!low_rank) continue;
    gemm(grad_logits, *low_rank_weight, grad_low_rank->narrow(0, begin, count), false, false, 0.0);
    gemm(grad_logits, low_rank->narrow(0, begin, count), *grad_low_rank_weight, true, false,
         begin == 0 ? low_rank_beta : 1.0);
  }
  cuda::launch_add_losses(chunks.losses.data_ptr<double>(), tokens, loss.data_ptr<double>(),
                          stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("linear_cross_entropy", &linear_cross_entropy_cuda); }

}  // namespace fastsft
