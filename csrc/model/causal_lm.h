#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/decoder_block.h"
#include "model/embedding_noise.h"
#include "model/layout.h"
#include "model/recompute.h"
#include "model/rope_table.h"
#include "shard/strategy.h"

namespace fastsft {

// A decoder-only language model as explicit forward and backward over flat units. It asks a
// Strategy for whole units and hands whole gradients back; it never asks which strategy runs.
class CausalLM {
 public:
  // `dtype` of the activations. Batches and parameters are on `device`.
  // std::invalid_argument for adapters that the model does not have.
  CausalLM(const ModelConfig& config, const AdapterOptions& adapters, at::ScalarType dtype,
           at::Device device, Recompute recompute, int64_t max_positions);

  const ModelConfig& config() const { return config_; }
  const DecoderLayout& layout() const { return layout_; }

  // Makes all buffers for micro-batches of up to `shape`, so that none of them allocates.
  void reserve(const MicroBatchShape& shape);
  // One micro-batch: adds sum of token_weight * cross entropy to `loss` [1] float64, and its
  // gradient to the strategy. Every rank takes part, with an empty batch if it has nothing.
  void forward_backward(const Batch& batch, Strategy& strategy, double label_smoothing,
                        const at::Tensor& loss);
  // The noise of the next calls of forward_backward.
  void use_embedding_noise(const EmbeddingNoise& noise) { noise_ = noise; }
  // The seed of the dropout of the next calls of forward_backward, whose batches have token keys.
  void use_dropout(int64_t seed) { dropout_seed_ = seed; }
  // Without gradients, and without noise and dropout.
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss);
  // [tokens, vocab_size] float32 for all tokens of the batch.
  at::Tensor logits(const Batch& batch, Strategy& strategy);

  int64_t buffer_bytes() const { return buffers_.nbytes(); }

 private:
  // The residual stream after the last block. In a training pass blocks keep their activations; the
  // last one and the head's unit stay whole.
  at::Tensor run_blocks(const Batch& batch, Strategy& strategy, Pass pass);
  void embed(const Batch& batch, Strategy& strategy, const at::Tensor& out);
  at::Tensor head_and_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                           const at::Tensor& stream, const at::Tensor& loss);
  // The input of the head of labelled tokens, and its gradient.
  struct HeadRows {
    const at::Tensor &normed, &grad;
  };
  void head_loss(const Batch& batch, const PlaceWeights& weights, double label_smoothing,
                 const at::Tensor& loss, const HeadRows& rows, UnitGradient* gradient);
  void backward_blocks(const Batch& batch, Strategy& strategy, const at::Tensor& grad);
  void backward_block(const BlockContext& context, const PlaceWeights& weights,
                      UnitGradient* gradient, int64_t layer, const at::Tensor& grad);
  void embedding_backward_and_reduce(const Batch& batch, Strategy& strategy,
                                     const at::Tensor& grad);
  void embedding_backward_into(const Batch& batch, const at::Tensor& grad, UnitGradient& gradient);
  // What the head adds of its adapters; undefined without them.
  at::Tensor head_products(const PlaceWeights& weights, const at::Tensor& normed) const;
  BlockContext context(const Batch& batch, const AdapterDropout& dropout);
  // None in a pass without backward.
  AdapterDropout dropout_of(const Batch& batch, Pass pass);
  // The rope tables grow to the greatest position met.
  void cover_positions(int64_t positions);
  void make_rope(int64_t positions);

  ModelConfig config_;
  at::ScalarType dtype_;
  at::Device device_;
  Recompute recompute_;
  EmbeddingNoise noise_;
  int64_t dropout_seed_ = 0;
  DecoderLayout layout_;
  HeadRefs head_;
  std::vector<BlockRefs> blocks_;
  // The lowest layer that backward reaches; num_layers: none, -1: it goes on into the embedding.
  int64_t lowest_ = -1;
  RopeTable rope_;
  ActivationBuffers buffers_;
  std::vector<BlockActivations> saved_;
};

}  // namespace fastsft
