// CausalLM methods that make what its batches need: rotary tables, memory, cuDNN's plans, the
// inputs that a block's methods share.

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "model/causal_lm.h"
#include "ops/attention/attention.h"

namespace fastsft {

void CausalLM::make_rope(int64_t needed, int64_t spare) {
  rope_ = make_rope_tables(config_, needed, spare, options_.device);
}

void CausalLM::cover_positions(int64_t positions) {
  const int64_t known = rope_.positions();
  if (positions > known) make_rope(positions, std::max<int64_t>(0, 2 * known - positions));
}

void CausalLM::keep_fp8_weights() {
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    BlockRefs& block = blocks_[layer];
    if (!block.in_fp8) continue;
    fp8_weights_.push_back(std::make_unique<Fp8Weights>(
        options_.fp8, block, static_cast<int64_t>(layer) >= lowest_, options_.device));
    block.fp8_weights = fp8_weights_.back().get();
  }
}

void CausalLM::weights_changed(ChangedWeights which) {
  for (const auto& weights : fp8_weights_) weights->forget(which);
}

int64_t CausalLM::weight_copy_bytes() const {
  int64_t sum = 0;
  for (const auto& weights : fp8_weights_) sum += weights->nbytes();
  return sum;
}

void CausalLM::reserve(const MicroBatchSize& most) {
  MicroBatchSize shape = most;
  if (context_heads_.ranks() > 1) shape.context_tokens = context_heads_.ranks() * most.tokens;
  cover_positions(shape.longest);
  buffers_.reserve(shape);
  if (inputs_) inputs_->reserve(static_cast<int64_t>(hidden_states(0, true).nbytes()));
  if (options_.device.is_cpu()) return;
  // Leaves a free block in the caching allocator for the temporary memory of attention.
  at::empty({plan_library_attention(context_heads_.of_rank(config_), options_.dtype, shape,
                                    {.deterministic = at::globalContext().deterministicAlgorithms(),
                                     .use_cudnn = use_cudnn_})},
            at::TensorOptions().dtype(at::kByte).device(options_.device));
}

void CausalLM::set_tile_tokens(int64_t most) {
  check_tiles(config_, most);
  options_.tile_tokens = most;
  buffers_.set_tile_tokens(most);
}

int64_t CausalLM::compile_attention(at::IntArrayRef shapes) {
  if (!use_cudnn_ || config_.attention_softcap > 0) return 0;
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  return prepare_attention(at::empty({0}, options), context_heads_.num_heads(),
                           context_heads_.num_key_value_heads(), config_.head_dim,
                           config_.attention_scale, config_.windows, shapes);
}

AdapterDropout CausalLM::dropout_of(const Batch& batch, const TrainingPass* pass) {
  const double probability = layout_.adapters().dropout;
  if (pass == nullptr || batch.token_keys.size(0) == 0 || probability == 0) return {};
  return {.probability = probability,
          .seed = pass->draws.dropout_seed,
          .token_keys = batch.token_keys,
          .memory = buffers_.get(Buffer::kDropped).view({-1})};
}

MicroBatchSize CausalLM::shape_of(const Batch& batch) const {
  return {batch.num_tokens(), batch.num_labels(), batch.max_seqlen,
          batch.is_slice ? batch.num_attended() : 0};
}

BlockContext CausalLM::context(const Batch& batch, const AdapterDropout& dropout) {
  std::optional<HeadExchange> exchange;
  if (batch.is_slice && batch.num_attended() > 0) {
    exchange.emplace(*options_.context_ranks, context_heads_, batch.num_attended(),
                     buffers_.get(Buffer::kExchange));
  }
  return {.config = config_,
          .batch = batch,
          .rope = rope_,
          .buffers = buffers_,
          .recompute = options_.recompute,
          .dropout = dropout,
          .tile_tokens = options_.tile_tokens,
          .fp8 = options_.fp8,
          .exchange = exchange};
}

int64_t CausalLM::smallest_window() const {
  int64_t smallest = 0;
  for (const int64_t window : config_.windows) {
    if (window > 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  }
  return smallest;
}

}  // namespace fastsft
