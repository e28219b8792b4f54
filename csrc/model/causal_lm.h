#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/decoder_block.h"
#include "model/embedding_noise.h"
#include "model/layout.h"
#include "model/model.h"
#include "model/recompute.h"
#include "model/rope_table.h"
#include "shard/strategy.h"

namespace fastsft {

// How a CausalLM computes.
struct ComputeOptions {
  at::ScalarType dtype;  // of the activations
  at::Device device;     // of batches and parameters
  Recompute recompute;
  int64_t max_positions = 0;  // of the longest conversation, 0: not known
};

// A decoder-only language model as explicit forward and backward over flat units.
class CausalLM : public Model {
 public:
  // std::invalid_argument for adapters that the model does not have, and for more positions than
  // its frequencies hold for.
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

  void reserve(const MicroBatchShape& shape) override;
  void forward_backward(const Batch& batch, Strategy& strategy, double label_smoothing,
                        const at::Tensor& loss) override;
  void use_embedding_noise(const EmbeddingNoise& noise) override { noise_ = noise; }
  void use_cudnn(bool use) override { use_cudnn_ = use; }
  void use_draws(const DrawPlace& place) override { dropout_seed_ = place.dropout_seed; }
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss) override;
  at::Tensor logits(const Batch& batch, Strategy& strategy) override;

  int64_t buffer_bytes() const override { return buffers_.nbytes(); }

 private:
  // The residual stream after the last block. In a training pass blocks keep their activations; the
  // last one and the head's unit stay whole.
  at::Tensor run_blocks(const Batch& batch, Strategy& strategy, Pass pass);
  void embed(const Batch& batch, Strategy& strategy, const at::Tensor& out, bool noisy);
  at::Tensor head_and_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                           const at::Tensor& stream, const at::Tensor& loss);
  // The input of the head of labelled tokens, and its gradient.
  struct HeadRows {
    const at::Tensor &normed, &grad;
  };
  void head_loss(const Batch& batch, const PlaceWeights& weights, double label_smoothing,
                 const at::Tensor& loss, const HeadRows& rows, UnitGradient* gradient);
  void backward_block(const BlockContext& context, const PlaceWeights& weights,
                      UnitGradient* gradient, int64_t layer, const at::Tensor& grad);
  void embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                     const at::Tensor& grad);
  // What the head adds of its adapters; undefined without them.
  at::Tensor head_products(const PlaceWeights& weights, const at::Tensor& normed) const;
  BlockContext context(const Batch& batch, const AdapterDropout& dropout);
  // None in a pass without backward.
  AdapterDropout dropout_of(const Batch& batch, Pass pass);
  // The rope tables grow to the greatest position met.
  void cover_positions(int64_t positions);
  void make_rope(int64_t needed, int64_t spare);

  ModelConfig config_;
  ComputeOptions options_;
  bool use_cudnn_ = false;
  EmbeddingNoise noise_;
  int64_t dropout_seed_ = 0;
  double embedding_scale_;  // as the activations hold it
  DecoderLayout layout_;
  HeadRefs head_;
  std::vector<BlockRefs> blocks_;
  // The lowest layer that backward reaches; num_layers: none, -1: it goes on into the embedding.
  int64_t lowest_ = -1;
  RopeTables rope_;
  ActivationBuffers buffers_;
  std::vector<BlockActivations> saved_;
};

}  // namespace fastsft
