#include "model/causal_lm.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "core/trace.h"
#include "core/whereabouts.h"
#include "model/adapter_products.h"
#include "model/place_weights.h"
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

std::optional<at::Tensor> gradient_of(const ParamRef& ref, UnitGradient* gradient) {
  if (!ref.trained) return std::nullopt;
  return ref.view(*gradient);
}

double beta_of(const ParamRef& ref, UnitGradient* gradient) {
  return ref.trained ? gradient->beta(ref.offset) : 0.0;
}

// Of the rope tables at first; they grow on demand, so that a long limit that no conversation
// reaches costs nothing.
constexpr int64_t kFirstPositions = 4096;

}  // namespace

CausalLM::CausalLM(const ModelConfig& config, const AdapterOptions& adapters,
                   const ComputeOptions& options)
    : config_(config),
      options_(options),
      embedding_scale_(embedding_scale(config, options.dtype)),
      layout_(config, adapters),
      head_(head_refs(config, layout_)),
      lowest_(lowest_trained_layer(config, layout_)),
      buffers_(config, options.dtype, options.recompute, options.device,
               adapter_sizes(config, layout_)),
      saved_(static_cast<size_t>(config.num_layers)) {
  check_positions(config.rope, options.max_positions);
  make_rope(0, options.max_positions > 0 ? std::min(options.max_positions, kFirstPositions)
                                         : kFirstPositions);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(block_refs(config, layout_, layer));
  }
}

int64_t CausalLM::smallest_window() const {
  int64_t smallest = 0;
  for (const int64_t window : config_.windows) {
    if (window > 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  }
  return smallest;
}

AdapterDropout CausalLM::dropout_of(const Batch& batch, Pass pass) {
  const double probability = layout_.adapters().dropout;
  if (pass == Pass::kForwardOnly || batch.token_keys.size(0) == 0 || probability == 0) return {};
  return {.probability = probability,
          .seed = dropout_seed_,
          .token_keys = batch.token_keys,
          .memory = buffers_.get(Buffer::kDropped).view({-1})};
}

BlockContext CausalLM::context(const Batch& batch, const AdapterDropout& dropout) {
  return {.config = config_,
          .batch = batch,
          .rope = rope_,
          .buffers = buffers_,
          .keep_products = options_.recompute == Recompute::kNone,
          .dropout = dropout,
          .use_cudnn = use_cudnn_,
          .replay_gate_up = options_.recompute == Recompute::kGateUp};
}

void CausalLM::make_rope(int64_t needed, int64_t spare) {
  rope_ = make_rope_tables(config_, needed, spare, options_.device);
}

void CausalLM::cover_positions(int64_t positions) {
  const int64_t known = rope_.positions();
  if (positions > known) make_rope(positions, std::max<int64_t>(0, 2 * known - positions));
}

void CausalLM::reserve(const MicroBatchShape& shape) {
  cover_positions(shape.longest);
  buffers_.reserve(shape);
  if (options_.device.is_cpu()) return;
  // One free piece of the caching allocator that what attention takes for a moment fits into.
  at::empty({plan_library_attention(config_, options_.dtype, shape,
                                    {.deterministic = at::globalContext().deterministicAlgorithms(),
                                     .use_cudnn = use_cudnn_})},
            at::TensorOptions().dtype(at::kByte).device(options_.device));
}

void CausalLM::embed(const Batch& batch, Strategy& strategy, const at::Tensor& out, bool noisy) {
  const UnitPlace& place = layout_.embedding();
  const PlaceWeights weights = gather(strategy, place);
  prefetch(strategy, layout_.block(0));
  const trace::Span span(trace::Lane::kCompute, "forward", layout_.name(place));
  embedding(head_.embedding.view(weights), batch.input_ids, out);
  if (!layout_.tied()) release(strategy, place);
  const auto scale = [&] {
    if (embedding_scale_ != 1) out.mul_(embedding_scale_);
  };
  if (!config_.scales_noise) scale();
  if (noisy && noise_.magnitude != 0) {
    add_embedding_noise(noise_, out, buffers_.get(Buffer::kNoise));
  }
  if (config_.scales_noise) scale();
}

at::Tensor CausalLM::run_blocks(const Batch& batch, Strategy& strategy, Pass pass) {
  const bool training = pass == Pass::kTraining;
  const auto stream = [&](int64_t layer) { return buffers_.get(Buffer::kHidden, layer); };
  const Phase phase("forward");
  cover_positions(batch.num_positions);
  embed(batch, strategy, stream(0), /*noisy=*/training);
  const BlockContext shared = context(batch, dropout_of(batch, pass));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const UnitPlace& place = layout_.block(layer);
    const bool last = layer + 1 == config_.num_layers;
    const bool keeps = training && layer >= lowest_;
    const PlaceWeights weights = gather(strategy, place);
    prefetch(strategy, last ? layout_.head() : layout_.block(layer + 1));
    const trace::Span span(trace::Lane::kCompute, "forward", layout_.name(place));
    BlockActivations saved = block_forward(shared, blocks_[static_cast<size_t>(layer)], weights,
                                           stream(layer), stream(layer + 1), layer);
    if (keeps) saved_[static_cast<size_t>(layer)] = std::move(saved);
    if (!last || !keeps) release(strategy, place);
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
  const BlockContext shared = context(batch, dropout_of(batch, Pass::kTraining));
  const int64_t lowest = std::max<int64_t>(lowest_, 0);
  for (int64_t layer = config_.num_layers - 1; layer >= lowest; --layer) {
    const UnitPlace& place = layout_.block(layer);
    const PlaceWeights weights = gather(strategy, place);
    if (layer > lowest) prefetch(strategy, layout_.block(layer - 1));
    backward_block(shared, weights, whole_gradient(strategy, place), layer, grad);
    reduce_gradient(strategy, place);
    release(strategy, place);
  }
  embedding_backward_and_reduce(batch, strategy, grad);
}

at::Tensor CausalLM::head_products(const PlaceWeights& weights, const at::Tensor& normed) const {
  if (head_.adapters.empty()) return {};
  const at::Tensor products = at::empty({normed.size(0), head_.adapters.a.rows}, normed.options());
  adapter_products(head_.adapters, weights, {}, normed, products);
  return products;
}

at::Tensor CausalLM::head_and_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                                   const at::Tensor& stream, const at::Tensor& loss) {
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor norm = head_.norm.view(weights);
  const trace::Span span(trace::Lane::kCompute, "loss", layout_.name(place));
  UnitGradient* gradient = whole_gradient(strategy, place);
  at::Tensor rows = buffers_.get(Buffer::kLabelled);
  const at::Tensor normed = buffers_.get(Buffer::kLabelledNorm);
  const at::Tensor rstd = buffers_.get(Buffer::kLabelledRstd);
  const at::Tensor grad_normed = buffers_.get(Buffer::kGradLabelledNorm);

  at::index_select_out(rows, stream, 0, batch.label_positions);
  rms_norm(rows, std::nullopt, norm, config_.rms_norm_eps, std::nullopt, normed, rstd,
           config_.norm_offset);
  head_loss(batch, weights, label_smoothing, loss, {normed, grad_normed}, gradient);
  const at::Tensor& grad_rows = normed;  // the head has read it
  grad_rows.zero_();
  rms_norm_backward(grad_normed, rows, norm, rstd, grad_rows, gradient_of(head_.norm, gradient),
                    beta_of(head_.norm, gradient), /*remake=*/false, config_.norm_offset);
  at::Tensor grad = stream;  // its labelled rows are copied, nothing else reads it any more
  grad.zero_();
  grad.index_copy_(0, batch.label_positions, grad_rows);
  if (!layout_.tied()) {
    reduce_gradient(strategy, place);
    release(strategy, place);
  }
  return grad;
}

void CausalLM::head_loss(const Batch& batch, const PlaceWeights& weights, double label_smoothing,
                         const at::Tensor& loss, const HeadRows& rows, UnitGradient* gradient) {
  const AdapterRefs& adapters = head_.adapters;
  std::optional<at::Tensor> products, grad_products, b, grad_b;
  double beta = 0;
  AdapterDropout dropout;
  if (!adapters.empty()) {
    dropout = dropout_of(batch, Pass::kTraining);
    if (dropout.probability != 0) {
      dropout.token_keys = dropout.token_keys.index_select(0, batch.label_positions);
    }
    const ParamRef& ref = adapters.parts.front().b;
    products = buffers_.get(Buffer::kHeadAdapters);
    grad_products = buffers_.get(Buffer::kGradHeadAdapters);
    adapter_products(adapters, weights, dropout, rows.normed, *products);
    b = ref.view(weights);
    grad_b = ref.view(*gradient);
    beta = gradient->beta(ref.offset);
  }
  linear_cross_entropy(rows.normed, head_.head.view(weights), batch.targets, batch.token_weights,
                       label_smoothing, loss, rows.grad, gradient_of(head_.head, gradient),
                       beta_of(head_.head, gradient), buffers_.get(Buffer::kLogits), products, b,
                       grad_products, grad_b, beta, config_.logit_softcap);
  if (adapters.empty()) return;
  adapter_a_backward(adapters, dropout, rows.normed, *grad_products, gradient);
  adapter_input_backward(adapters, weights, dropout, *grad_products, rows.grad);
}

void CausalLM::backward_block(const BlockContext& context, const PlaceWeights& weights,
                              UnitGradient* gradient, int64_t layer, const at::Tensor& grad) {
  const auto index = static_cast<size_t>(layer);
  const trace::Span span(trace::Lane::kCompute, "backward", layout_.name(layout_.block(layer)));
  if (options_.recompute == Recompute::kBlock) {
    const at::Tensor out = buffers_.get(Buffer::kRecomputed);
    saved_[index] =
        block_forward(context, blocks_[index], weights, saved_[index].input, out, layer);
  }
  block_backward(context, blocks_[index], weights, saved_[index], grad, gradient,
                 /*stops=*/layer == lowest_);
  saved_[index] = {};  // else old buffers stay alive when the pool grows
}

// Tied, the gradient of the place has that of the head already.
void CausalLM::embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                             const at::Tensor& grad) {
  const UnitPlace& place = layout_.embedding();
  if (UnitGradient* gradient = whole_gradient(strategy, place)) {
    const trace::Span span(trace::Lane::kCompute, "backward", layout_.name(place));
    if (head_.embedding.trained) {
      at::Tensor table = head_.embedding.view(*gradient);
      if (gradient->beta(head_.embedding.offset) == 0.0) table.zero_();
      if (embedding_scale_ != 1) grad.mul_(embedding_scale_);
      if (config_.padding_idx >= 0) {
        grad.masked_fill_(batch.input_ids.eq(config_.padding_idx).unsqueeze(1), 0.0);
      }
      embedding_backward(grad, batch.input_ids, table);
    }
    reduce_gradient(strategy, place);
  }
  if (layout_.tied()) release(strategy, place);
}

void CausalLM::forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                            const at::Tensor& loss) {
  buffers_.begin(shape_of(batch), Pass::kForwardOnly);
  const at::Tensor stream = run_blocks(batch, strategy, Pass::kForwardOnly);
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor rows = at::index_select(stream, 0, batch.label_positions);
  const at::Tensor normed = at::empty(rows.sizes(), rows.options());
  const at::Tensor rstd = at::empty({batch.num_labels()}, rows.options().dtype(at::kFloat));
  rms_norm(rows, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt, normed,
           rstd, config_.norm_offset);
  std::optional<at::Tensor> products, b;
  if (!head_.adapters.empty()) {
    products = head_products(weights, normed);
    b = head_.adapters.parts.front().b.view(weights);
  }
  linear_cross_entropy(normed, head_.head.view(weights), batch.targets, batch.token_weights,
                       label_smoothing, loss, std::nullopt, std::nullopt, 0.0,
                       buffers_.get(Buffer::kLogits), products, b, std::nullopt, std::nullopt, 0,
                       config_.logit_softcap);
  release(strategy, place);
}

at::Tensor CausalLM::logits(const Batch& batch, Strategy& strategy) {
  buffers_.begin(shape_of(batch), Pass::kForwardOnly);
  const at::Tensor stream = run_blocks(batch, strategy, Pass::kForwardOnly);
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor normed = at::empty(stream.sizes(), stream.options());
  const auto wide = stream.options().dtype(at::kFloat);
  const at::Tensor rstd = at::empty({batch.num_tokens()}, wide);
  rms_norm(stream, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt,
           normed, rstd, config_.norm_offset);
  at::Tensor result = at::empty({batch.num_tokens(), config_.vocab_size}, wide);
  gemm(normed, head_.head.view(weights), result, false, true, 0.0);
  add_adapters(head_.adapters, weights, head_products(weights, normed), result);
  cap_values(result, config_.logit_softcap);
  release(strategy, place);
  return result;
}

}  // namespace fastsft
