#include "model/causal_lm.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "core/rank_status.h"
#include "core/trace.h"
#include "model/adapter_products.h"
#include "ops/cpu/scratch.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rms_norm/rms_norm.h"

namespace fastsft {
namespace {

// Prefetches a layer's trained unit and frozen unit.
void prefetch(Strategy& strategy, const UnitPlace& place) {
  if (place.frozen) strategy.frozen().prefetch(*place.frozen);
  if (place.trained) strategy.prefetch(*place.trained);
}

PlaceWeights gather(Strategy& strategy, const UnitPlace& place) {
  PlaceWeights weights;
  if (place.frozen) weights.frozen = strategy.frozen().gather(*place.frozen);
  if (place.trained) weights.trained = strategy.gather(*place.trained);
  return weights;
}

void release(Strategy& strategy, const UnitPlace& place) {
  if (place.frozen) strategy.frozen().release(*place.frozen);
  if (place.trained) strategy.release(*place.trained);
}

// Returns null if the layer has no trained parameters.
UnitGradient* whole_gradient(Strategy& strategy, const UnitPlace& place) {
  return place.trained ? &strategy.gradients().whole(*place.trained) : nullptr;
}

void reduce_gradient(Strategy& strategy, const UnitPlace& place) {
  if (place.trained) strategy.gradients().reduce(*place.trained);
}

// First length of the RoPE tables. They grow on demand, so a long maximum length that no
// conversation reaches costs nothing.
constexpr int64_t kFirstPositions = 4096;

}  // namespace

CausalLM::CausalLM(const ModelConfig& config, const AdapterOptions& adapters,
                   const ComputeOptions& options)
    : config_(config),
      options_(options),
      context_heads_(config, options.context_ranks ? options.context_ranks->world_size() : 1),
      embedding_scale_(embedding_scale(config, options.dtype)),
      layout_(config, adapters),
      head_(head_refs(config, layout_)),
      lowest_(lowest_trained_layer(config, layout_)),
      buffers_(config,
               {.dtype = options.dtype,
                .recompute = options.recompute,
                .device = options.device.type(),
                .adapters = adapter_sizes(config, layout_),
                .tile_tokens = options.tile_tokens,
                .offload_inputs = options.offload_inputs,
                .fp8 = options.fp8.is_used(),
                .fp8_wgrad = options.fp8.wgrad && trains_linears(config, layout_),
                .keep_fp8_weights = options.keep_fp8_weights,
                .context_ranks = context_heads_.ranks()},
               options.device),
      saved_(static_cast<size_t>(config.num_layers)) {
  check_offloaded_inputs(options.recompute, options.offload_inputs);
  check_tiles(config, options.tile_tokens);
  if (options.offload_inputs) {
    inputs_ = std::make_unique<OffloadedInputs>(options.device, std::max<int64_t>(lowest_, 0),
                                                config.num_layers);
  }
  check_positions(config.rope, options.max_positions);
  make_rope(0, options.max_positions > 0 ? std::min(options.max_positions, kFirstPositions)
                                         : kFirstPositions);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(block_refs(config, layout_, layer));
    blocks_.back().in_fp8 = options.fp8.has_layer(layer);
  }
  if (options.keep_fp8_weights) keep_fp8_weights();
}

void CausalLM::embed(const Batch& batch, Strategy& strategy, const at::Tensor& out,
                     const EmbeddingNoise& noise) {
  const UnitPlace& place = layout_.embedding();
  const PlaceWeights weights = gather(strategy, place);
  prefetch(strategy, layout_.block(0));
  const trace::Span span(trace::Track::kCompute, "forward", layout_.name(place));
  embedding(head_.embedding.view(weights), batch.input_ids, out);
  if (!layout_.tied()) release(strategy, place);
  const auto scale = [&] {
    if (embedding_scale_ != 1) out.mul_(embedding_scale_);
  };
  if (!config_.scales_noise) scale();
  if (noise.magnitude != 0) add_embedding_noise(noise, out, buffers_.get(Buffer::kNoise));
  if (config_.scales_noise) scale();
}

// Offloaded inputs take turns in two slots. The last hidden states, whose memory their gradient
// takes, are next to them.
at::Tensor CausalLM::hidden_states(int64_t layer, bool offloads) {
  if (!offloads) return buffers_.get(Buffer::kHidden, layer);
  return buffers_.get(Buffer::kHidden, layer == config_.num_layers ? 2 : layer % 2);
}

at::Tensor CausalLM::run_blocks(const Batch& batch, Strategy& strategy, const TrainingPass* pass) {
  const bool offloads = inputs_ && pass != nullptr;
  const auto hidden = [&](int64_t layer) { return hidden_states(layer, offloads); };
  const ScopedPhase phase("forward");
  cover_positions(batch.num_positions);
  if (offloads) inputs_->reserve(static_cast<int64_t>(hidden(0).nbytes()));
  embed(batch, strategy, hidden(0), pass != nullptr ? pass->noise : EmbeddingNoise());
  const BlockContext shared = context(batch, dropout_of(batch, pass));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const UnitPlace& place = layout_.block(layer);
    const bool last = layer + 1 == config_.num_layers;
    const bool keeps = pass != nullptr && layer >= lowest_;
    const PlaceWeights weights = gather(strategy, place);
    prefetch(strategy, last ? layout_.head() : layout_.block(layer + 1));
    const trace::Span span(trace::Track::kCompute, "forward", layout_.name(place));
    if (offloads) inputs_->before_forward(layer, hidden(layer));
    BlockActivations saved = block_forward(shared, blocks_[static_cast<size_t>(layer)], weights,
                                           hidden(layer), hidden(layer + 1), layer);
    if (keeps) saved_[static_cast<size_t>(layer)] = std::move(saved);
    if (!last || !keeps) release(strategy, place);
  }
  return hidden(config_.num_layers);
}

void CausalLM::forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                const at::Tensor& loss) {
  buffers_.begin(shape_of(batch), Pass::kTraining);
  const cpu::ScratchLoan loan(buffers_.get(Buffer::kScratch));
  // 1. Embedding and blocks.
  const at::Tensor hidden = run_blocks(batch, strategy, &pass);
  // 2. Head and loss, and the hidden states' gradient.
  const at::Tensor grad = head_and_loss(batch, strategy, pass, hidden, loss);
  // 3. Blocks backward. Gathers and reductions of neighbouring units overlap the computation.
  const ScopedPhase phase("backward");
  const BlockContext shared = context(batch, dropout_of(batch, &pass));
  const int64_t lowest = std::max<int64_t>(lowest_, 0);
  for (int64_t layer = config_.num_layers - 1; layer >= lowest; --layer) {
    const UnitPlace& place = layout_.block(layer);
    const PlaceWeights weights = gather(strategy, place);
    if (layer > lowest) prefetch(strategy, layout_.block(layer - 1));
    backward_block(shared, weights, whole_gradient(strategy, place), layer, grad);
    reduce_gradient(strategy, place);
    release(strategy, place);
  }
  // 4. Embedding backward.
  embedding_backward_and_reduce(batch, strategy, grad);
}

at::Tensor CausalLM::head_products(const PlaceWeights& weights, const at::Tensor& normed) const {
  if (head_.adapters.empty()) return {};
  const at::Tensor products = at::empty({normed.size(0), head_.adapters.a.rows}, normed.options());
  adapter_products(head_.adapters, weights, {}, normed, products);
  return products;
}

at::Tensor CausalLM::head_and_loss(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                   const at::Tensor& hidden, const at::Tensor& loss) {
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor norm = head_.norm.view(weights);
  const trace::Span span(trace::Track::kCompute, "loss", layout_.name(place));
  UnitGradient* gradient = whole_gradient(strategy, place);
  at::Tensor rows = buffers_.get(Buffer::kLabelled);
  const at::Tensor normed = buffers_.get(Buffer::kLabelledNorm);
  const at::Tensor rstd = buffers_.get(Buffer::kLabelledRstd);
  const at::Tensor grad_normed = buffers_.get(Buffer::kGradLabelledNorm);

  // Only labelled tokens pass through the norm and the head.
  at::index_select_out(rows, hidden, 0, batch.label_positions);
  rms_norm(rows, std::nullopt, norm, config_.rms_norm_eps, std::nullopt, normed, rstd,
           config_.norm_offset);
  head_loss(batch, weights, pass, loss, {normed, grad_normed}, gradient);
  const at::Tensor& grad_rows = normed;  // the head does not need `normed` any more
  grad_rows.zero_();
  rms_norm_backward(grad_normed, rows, norm, rstd, grad_rows, head_.norm.gradient(gradient),
                    head_.norm.begin_write(gradient), /*recompute=*/false, config_.norm_offset);
  at::Tensor grad = hidden;  // its memory is free: the labelled rows were copied
  grad.zero_();
  grad.index_copy_(0, batch.label_positions, grad_rows);
  if (!layout_.tied()) {
    reduce_gradient(strategy, place);
    release(strategy, place);
  }
  return grad;
}

void CausalLM::head_loss(const Batch& batch, const PlaceWeights& weights, const TrainingPass& pass,
                         const at::Tensor& loss, const HeadRows& rows, UnitGradient* gradient) {
  const AdapterRefs& adapters = head_.adapters;
  std::optional<at::Tensor> products, grad_products, b, grad_b;
  double beta = 0;
  AdapterDropout dropout;
  if (!adapters.empty()) {
    dropout = dropout_of(batch, &pass);
    if (dropout.probability != 0) {
      dropout.token_keys = dropout.token_keys.index_select(0, batch.label_positions);
    }
    const ParamRef& ref = adapters.parts.front().b;
    products = buffers_.get(Buffer::kHeadAdapters);
    grad_products = buffers_.get(Buffer::kGradHeadAdapters);
    adapter_products(adapters, weights, dropout, rows.normed, *products);
    b = ref.view(weights);
    grad_b = ref.view(*gradient);
    beta = gradient->begin_write(ref.offset);
  }
  linear_cross_entropy({.hidden = rows.normed,
                        .weight = head_.head.view(weights),
                        .targets = batch.targets,
                        .token_weights = batch.token_weights,
                        .label_smoothing = pass.label_smoothing,
                        .loss = loss,
                        .grad_hidden = rows.grad,
                        .grad_weight = head_.head.gradient(gradient),
                        .beta = head_.head.begin_write(gradient),
                        .workspace = buffers_.get(Buffer::kLogits),
                        .low_rank = products,
                        .low_rank_weight = b,
                        .grad_low_rank = grad_products,
                        .grad_low_rank_weight = grad_b,
                        .low_rank_beta = beta,
                        .softcap = config_.logit_softcap});
  if (adapters.empty()) return;
  adapter_a_backward(adapters, dropout, rows.normed, *grad_products, gradient);
  adapter_input_backward(adapters, weights, dropout, *grad_products, rows.grad);
}

void CausalLM::backward_block(const BlockContext& context, const PlaceWeights& weights,
                              UnitGradient* gradient, int64_t layer, const at::Tensor& grad) {
  const auto index = static_cast<size_t>(layer);
  const trace::Span span(trace::Track::kCompute, "backward", layout_.name(layout_.block(layer)));
  if (inputs_) inputs_->before_backward(layer);
  if (options_.recompute == Recompute::kBlock) {
    saved_[index] =
        recompute_attention(context, blocks_[index], weights, saved_[index].input, layer);
  }
  block_backward(context, blocks_[index], weights, saved_[index], grad, gradient,
                 /*stops=*/layer == lowest_);
  if (inputs_) inputs_->after_backward(layer, saved_[index].input);
  saved_[index] = {};  // otherwise old buffers stay alive when the pool grows
}

// With tied weights, the gradient already contains the head's part.
void CausalLM::embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                             const at::Tensor& grad) {
  const UnitPlace& place = layout_.embedding();
  if (UnitGradient* gradient = whole_gradient(strategy, place)) {
    const trace::Span span(trace::Track::kCompute, "backward", layout_.name(place));
    if (head_.embedding.trained) {
      at::Tensor table = head_.embedding.view(*gradient);
      if (gradient->begin_write(head_.embedding.offset) == 0.0) table.zero_();
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
  const at::Tensor hidden = run_blocks(batch, strategy, nullptr);
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor rows = at::index_select(hidden, 0, batch.label_positions);
  const at::Tensor normed = at::empty(rows.sizes(), rows.options());
  const at::Tensor rstd = at::empty({batch.num_labels()}, rows.options().dtype(at::kFloat));
  rms_norm(rows, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt, normed,
           rstd, config_.norm_offset);
  std::optional<at::Tensor> products, b;
  if (!head_.adapters.empty()) {
    products = head_products(weights, normed);
    b = head_.adapters.parts.front().b.view(weights);
  }
  linear_cross_entropy({.hidden = normed,
                        .weight = head_.head.view(weights),
                        .targets = batch.targets,
                        .token_weights = batch.token_weights,
                        .label_smoothing = label_smoothing,
                        .loss = loss,
                        .workspace = buffers_.get(Buffer::kLogits),
                        .low_rank = products,
                        .low_rank_weight = b,
                        .softcap = config_.logit_softcap});
  release(strategy, place);
}

at::Tensor CausalLM::logits(const Batch& batch, Strategy& strategy) {
  buffers_.begin(shape_of(batch), Pass::kForwardOnly);
  const at::Tensor hidden = run_blocks(batch, strategy, nullptr);
  const UnitPlace& place = layout_.head();
  const PlaceWeights weights = gather(strategy, place);
  const at::Tensor normed = at::empty(hidden.sizes(), hidden.options());
  const auto wide = hidden.options().dtype(at::kFloat);
  const at::Tensor rstd = at::empty({batch.num_tokens()}, wide);
  rms_norm(hidden, std::nullopt, head_.norm.view(weights), config_.rms_norm_eps, std::nullopt,
           normed, rstd, config_.norm_offset);
  at::Tensor result = at::empty({batch.num_tokens(), config_.vocab_size}, wide);
  gemm(normed, head_.head.view(weights), result, false, true, 0.0);
  add_adapters(head_.adapters, weights, head_products(weights, normed), result);
  cap_values(result, config_.logit_softcap);
  release(strategy, place);
  return result;
}

}  // namespace fastsft
