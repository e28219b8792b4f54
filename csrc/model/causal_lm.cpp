#include "model/causal_lm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "core/trace.h"
#include "core/whereabouts.h"
#include "ops/cpu/scratch.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rms_norm/rms_norm.h"

namespace fastsft {
namespace {

MicroBatchShape shape_of(const Batch& batch) {
  return {batch.num_tokens(), batch.num_labels(), batch.max_seqlen};
}

}  // namespace

CausalLM::CausalLM(const ModelConfig& config, at::ScalarType dtype, at::Device device,
                   Recompute recompute, int64_t max_positions)
    : config_(config),
      dtype_(dtype),
      device_(device),
      recompute_(recompute),
      layout_(config),
      head_(head_refs(config, layout_)),
      buffers_(config, dtype, recompute, device),
      saved_(static_cast<size_t>(config.num_layers)) {
  make_rope(max_positions);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(block_refs(config, layout_.units()[layout_.block_unit(layer)]));
  }
}

int64_t CausalLM::smallest_window() const {
  int64_t smallest = 0;
  for (const int64_t window : config_.windows) {
    if (window > 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  }
  return smallest;
}

BlockContext CausalLM::context(const Batch& batch) {
  return {.config = config_,
          .batch = batch,
          .rope = rope_,
          .buffers = buffers_,
          .keep_products = recompute_ == Recompute::kNone,
          .replay_gate_up = recompute_ == Recompute::kGateUp};
}

void CausalLM::make_rope(int64_t positions) {
  rope_ = make_rope_table(config_, positions);
  rope_ = {.cos = rope_.cos.to(device_), .sin = rope_.sin.to(device_)};
}

void CausalLM::cover_positions(int64_t positions) {
  const int64_t known = rope_.cos.size(0);
  if (positions > known) make_rope(std::max(positions, 2 * known));
}

void CausalLM::reserve(const MicroBatchShape& shape) {
  cover_positions(shape.longest);
  buffers_.reserve(shape);
  if (device_.is_cpu()) return;
  // One free piece of the caching allocator that what flash takes for a moment fits into.
  at::empty({plan_flash_attention(config_, dtype_, shape)},
            at::TensorOptions().dtype(at::kByte).device(device_));
}

void CausalLM::embed(const Batch& batch, Strategy& strategy, const at::Tensor& out) {
  const size_t unit = layout_.embedding_unit();
  const at::Tensor weights = strategy.gather(unit);
  strategy.prefetch(layout_.block_unit(0));
  const trace::Span span(trace::Lane::kCompute, "forward", layout_.units()[unit].name());
  embedding(head_.embedding.view(weights), batch.input_ids, out);
  if (!layout_.tied()) strategy.release(unit);
}

at::Tensor CausalLM::run_blocks(const Batch& batch, Strategy& strategy, Pass pass) {
  const bool training = pass == Pass::kTraining;
  const auto stream = [&](int64_t layer) { return buffers_.get(Buffer::kHidden, layer); };
  const Phase phase("forward");
  cover_positions(batch.num_positions);
  embed(batch, strategy, stream(0));
  if (training && noise_.magnitude != 0) {
    add_embedding_noise(noise_, stream(0), buffers_.get(Buffer::kNoise));
  }
  const BlockContext shared = context(batch);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const size_t unit = layout_.block_unit(layer);
    const bool last = layer + 1 == config_.num_layers;
    const at::Tensor weights = strategy.gather(unit);
    strategy.prefetch(last ? layout_.head_unit() : layout_.block_unit(layer + 1));
    const trace::Span span(trace::Lane::kCompute, "forward", layout_.units()[unit].name());
    BlockActivations saved = block_forward(shared, blocks_[static_cast<size_t>(layer)], weights,
                                           stream(layer), stream(layer + 1), layer);
    if (training) saved_[static_cast<size_t>(layer)] = std::move(saved);
    if (!last || !training) strategy.release(unit);
  }
  return stream(config_.num_layers);
}

void CausalLM::forward_backward(const Batch& batch, Strategy& strategy, double label_smoothing,
                                const at::Tensor& loss) {
  buffers_.begin(shape_of(batch), Pass::kTraining);
  const cpu::ScratchLoan loan(buffers_.get(Buffer::kScratch));
  const at::Tensor stream = run_blocks(batch, strategy, Pass::kTraining);
  const at::Tensor grad = head_and_loss(batch, strategy, label_smoothing, stream, loss);
  const Phase phase("backward");
  backward_blocks(batch, strategy, grad);
  embedding_backward_and_reduce(batch, strategy, grad);
}

at::Tensor CausalLM::head_and_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                                   const at::Tensor& stream, const at::Tensor& loss) {
  const size_t unit = layout_.head_unit();
  const at::Tensor weights = strategy.gather(unit), norm = head_.norm.view(weights);
  const trace::Span span(trace::Lane::kCompute, "loss", layout_.units()[unit].name());
  UnitGradient& gradient = strategy.gradients().whole(unit);
  at::Tensor rows = buffers_.get(Buffer::kLabelled);
  const at::Tensor normed = buffers_.get(Buffer::kLabelledNorm);
  const at::Tensor rstd = buffers_.get(Buffer::kLabelledRstd);
  const at::Tensor grad_normed = buffers_.get(Buffer::kGradLabelledNorm);

  at::index_select_out(rows, stream, 0, batch.label_positions);
  rms_norm(rows, std::nullopt, norm, config_.rms_norm_eps, std::nullopt, normed, rstd);
  linear_cross_entropy(normed, head_.head.view(weights), batch.targets, batch.token_weights,
                       label_smoothing, loss, grad_normed, head_.head.view(gradient.flat()),
                       gradient.beta(head_.head.offset), buffers_.get(Buffer::kLogits));
  const at::Tensor& grad_rows = normed;  // the head has read it
  grad_rows.zero_();
  rms_norm_backward(grad_normed, rows, norm, rstd, grad_rows, head_.norm.view(gradient.flat()),
                    gradient.beta(head_.norm.offset));
  at::Tensor grad = stream;  // its labelled rows are copied, nothing else reads it any more
  grad.zero_();
  grad.index_copy_(0, batch.label_positions, grad_rows);
  if (!layout_.tied()) {
    strategy.gradients().reduce(unit);
    strategy.release(unit);
  }
  return grad;
}

void CausalLM::backward_blocks(const Batch& batch, Strategy& strategy, const at::Tensor& grad) {
  const BlockContext shared = context(batch);
  for (int64_t layer = config_.num_layers - 1; layer >= 0; --layer) {
    const size_t unit = layout_.block_unit(layer);
    const at::Tensor weights = strategy.gather(unit);
    if (layer > 0) strategy.prefetch(layout_.block_unit(layer - 1));
    backward_block(shared, weights, strategy.gradients().whole(unit), layer, grad);
    strategy.gradients().reduce(unit);
    strategy.release(unit);
  }
}

void CausalLM::backward_block(const BlockContext& context, const at::Tensor& weights,
                              UnitGradient& gradient, int64_t layer, const at::Tensor& grad) {
  const auto index = static_cast<size_t>(layer);
  const trace::Span span(trace::Lane::kCompute, "backward",
                         layout_.units()[layout_.block_unit(layer)].name());
  if (recompute_ == Recompute::kBlock) {
    const at::Tensor out = buffers_.get(Buffer::kRecomputed);
    saved_[index] =
        block_forward(context, blocks_[index], weights, saved_[index].input, out, layer);
  }
  block_backward(context, blocks_[index], weights, saved_[index], grad, gradient);
  saved_[index] = {};  // else old buffers stay alive when the pool grows
}

void CausalLM::embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                             const at::Tensor& grad) {
  const size_t unit = layout_.embedding_unit();
  UnitGradient& gradient = strategy.gradients().whole(unit);
  const trace::Span span(trace::Lane::kCompute, "backward", layout_.units()[unit].name());
  at::Tensor table = head_.embedding.view(gradient.flat());
  if (gradient.beta(head_.embedding.offset) == 0.0) table.zero_();
  if (config_.padding_idx >= 0) {
    grad.masked_fill_(batch.input_ids.eq(config_.padding_idx).unsqueeze(1), 0.0);
  }
  embedding_backward(grad, batch.input_ids, table);
  strategy.gradients().reduce(unit);
  if (layout_.tied()) strategy.release(unit);
}

void CausalLM::forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                            const at::Tensor& loss) {
  buffers_.begin(shape_of(batch), Pass::kForwardOnly);
  const at::Tensor stream = run_blocks(batch, strategy, Pass::kForwardOnly);
  const size_t unit = layout_.head_unit();
  const at::Tensor weights = strategy.gather(unit);
  const at::Tensor rows = at::index_select(stream, 0, batch.label_positions);
  const at::Tensor normed = at::empty(rows.sizes(), rows.options());
  const at::Tensor rstd = at::empty({batch.num_labels()}, rows.options().dtype(at::kFloat));
  rms_norm(rows, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt, normed,
           rstd);
  linear_cross_entropy(normed, head_.head.view(weights), batch.targets, batch.token_weights,
                       label_smoothing, loss, std::nullopt, std::nullopt, 0.0,
                       buffers_.get(Buffer::kLogits));
  strategy.release(unit);
}

at::Tensor CausalLM::logits(const Batch& batch, Strategy& strategy) {
  buffers_.begin(shape_of(batch), Pass::kForwardOnly);
  const at::Tensor stream = run_blocks(batch, strategy, Pass::kForwardOnly);
  const size_t unit = layout_.head_unit();
  const at::Tensor weights = strategy.gather(unit);
  const at::Tensor normed = at::empty(stream.sizes(), stream.options());
  const auto wide = stream.options().dtype(at::kFloat);
  const at::Tensor rstd = at::empty({batch.num_tokens()}, wide);
  rms_norm(stream, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt,
           normed, rstd);
  at::Tensor result = at::empty({batch.num_tokens(), config_.vocab_size}, wide);
  gemm(normed, head_.head.view(weights), result, false, true, 0.0);
  strategy.release(unit);
  return result;
}

}  // namespace fastsft
