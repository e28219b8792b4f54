#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/context_heads.h"
#include "model/decoder_block.h"
#include "model/embedding_noise.h"
#include "model/fp8_products.h"
#include "model/fp8_weights.h"
#include "model/layout.h"
#include "model/model.h"
#include "model/offloaded_inputs.h"
#include "model/recompute.h"
#include "model/rope_table.h"
#include "shard/strategy.h"

namespace fastsft {

// How a CausalLM computes. `dtype` and `fp8` change its results, and tiles the rounding of weight
// gradients, which are sums over tiles.
struct ComputeOptions {
  at::ScalarType dtype;  // dtype of the activations
  at::Device device;     // device of batches and parameters
  Recompute recompute;
  int64_t max_positions = 0;    // tokens of the longest conversation; 0 if unknown
  int64_t tile_tokens = 0;      // StateOptions::tile_tokens
  bool offload_inputs = false;  // StateOptions::offload_inputs
  Fp8Recipe fp8 = {};
  bool keep_fp8_weights = false;          // StateOptions::keep_fp8_weights
  Communicator* context_ranks = nullptr;  // share a micro-batch's tokens; null: this rank alone
};

// A decoder-only language model with explicit forward and backward over flat units.
class CausalLM : public Model {
 public:
  // Throws std::invalid_argument for adapters that the model does not have, and for more positions
  // than its RoPE frequencies support.
  CausalLM(const ModelConfig& config, const AdapterOptions& adapters,
           const ComputeOptions& options);

  const ModelConfig& config() const { return config_; }
  const DecoderLayout& layout() const { return layout_; }

  const std::vector<ParamUnit>& units() const override { return layout_.units(); }
  const std::vector<ParamUnit>& frozen_units() const override { return layout_.frozen_units(); }
  size_t resident_units() const override { return layout_.resident_units(); }
  size_t resident_frozen_units() const override { return layout_.resident_frozen_units(); }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t embedding_parameters() const override { return config_.vocab_size * config_.hidden_size; }
  int64_t smallest_window() const override;
  int64_t num_parameters() const override { return layout_.num_parameters(); }
  int64_t num_trained_parameters() const override { return layout_.num_trained_parameters(); }
  bool has_token_draws() const override { return layout_.adapters().dropout > 0; }

  void reserve(const MicroBatchSize& shape) override;
  void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                        const at::Tensor& loss) override;
  void set_tile_tokens(int64_t most) override;
  void use_cudnn(bool use) override { use_cudnn_ = use; }
  std::optional<HeadShape> cudnn_heads() const override {
    if (!use_cudnn_) return std::nullopt;
    return HeadShape{context_heads_.num_heads(), context_heads_.num_key_value_heads(),
                     config_.head_dim};
  }
  int64_t compile_attention(at::IntArrayRef shapes) override;
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss) override;
  at::Tensor logits(const Batch& batch, Strategy& strategy) override;

  void weights_changed(ChangedWeights which) override;

  int64_t weight_copy_bytes() const override;
  int64_t buffer_bytes() const override { return buffers_.nbytes(); }
  int64_t host_bytes() const override { return inputs_ ? inputs_->nbytes() : 0; }

 private:
  // Returns the hidden states after the last block. With `pass` (null: forward only) blocks keep
  // their activations, and the units for the last block and the head stay gathered.
  at::Tensor run_blocks(const Batch& batch, Strategy& strategy, const TrainingPass* pass);
  // Returns the buffer of the hidden states before a layer (num_layers: after the last layer).
  at::Tensor hidden_states(int64_t layer, bool offloads);
  void embed(const Batch& batch, Strategy& strategy, const at::Tensor& out,
             const EmbeddingNoise& noise);
  // Adds to `loss`. Returns the gradient of `hidden`, which overwrites `hidden`.
  at::Tensor head_and_loss(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                           const at::Tensor& hidden, const at::Tensor& loss);
  // The head's input for labelled tokens, and its gradient.
  struct HeadRows {
    const at::Tensor &normed, &grad;
  };
  void head_loss(const Batch& batch, const PlaceWeights& weights, const TrainingPass& pass,
                 const at::Tensor& loss, const HeadRows& rows, UnitGradient* gradient);
  void backward_block(const BlockContext& context, const PlaceWeights& weights,
                      UnitGradient* gradient, int64_t layer, const at::Tensor& grad);
  void embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                     const at::Tensor& grad);
  // Returns x A^T of the head's adapters; undefined without adapters.
  at::Tensor head_products(const PlaceWeights& weights, const at::Tensor& normed) const;
  BlockContext context(const Batch& batch, const AdapterDropout& dropout);
  // Returns a micro-batch's sizes; of a slice, with the tokens of all context ranks.
  MicroBatchSize shape_of(const Batch& batch) const;
  // Returns the adapters' dropout; none for a forward pass alone (`pass` null).
  AdapterDropout dropout_of(const Batch& batch, const TrainingPass* pass);
  // Grows the RoPE tables to at least `positions`.
  void cover_positions(int64_t positions);
  void keep_fp8_weights();
  void make_rope(int64_t needed, int64_t spare);

  ModelConfig config_;
  ComputeOptions options_;
  ContextHeads context_heads_;
  bool use_cudnn_ = false;
  double embedding_scale_;  // factor of the embedding, rounded to the activation dtype
  DecoderLayout layout_;
  HeadRefs head_;
  std::vector<BlockRefs> blocks_;
  std::vector<std::unique_ptr<Fp8Weights>> fp8_weights_;  // of the blocks that keep them
  // The lowest layer that backward reaches; num_layers: only the head, -1: also the embedding.
  int64_t lowest_ = -1;
  RopeTables rope_;
  ActivationBuffers buffers_;
  std::unique_ptr<OffloadedInputs> inputs_;  // null: inputs stay on the device
  std::vector<BlockActivations> saved_;
};

}  // namespace fastsft
