#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "model/embedding_noise.h"
#include "model/op_memory.h"
#include "shard/param_unit.h"
#include "shard/strategy.h"

namespace fastsft {

// Where the random numbers of a micro-batch begin: equal places draw equal numbers.
struct DrawPlace {
  int64_t seed = 0;
  int64_t step = 0;  // begun in this run or the one that it resumes, from 1
  int64_t micro_batch = 0;
  int64_t dropout_seed = 0;  // of the adapters' dropout, which goes by token
};

// How a micro-batch is computed in training.
struct TrainingPass {
  double label_smoothing = 0;
  EmbeddingNoise noise = {};
  DrawPlace draws = {};
};

// A language model over flat units. It asks a Strategy for whole units and hands whole gradients
// back; it never asks which strategy runs. Batches and parameters are on one device. Every rank
// calls the same methods, with an empty batch if it has nothing.
class Model {
 public:
  virtual ~Model() = default;

  // What is trained, and what is not.
  virtual const std::vector<ParamUnit>& units() const = 0;
  virtual const std::vector<ParamUnit>& frozen_units() const { return StrategyContext::no_units(); }
  // Units that are whole at once next to the one computed and its neighbour.
  virtual size_t resident_units() const = 0;
  virtual size_t resident_frozen_units() const { return 0; }
  virtual int64_t vocab_size() const = 0;
  // Elements of the token embedding, for the count of floating point operations.
  virtual int64_t embedding_parameters() const = 0;
  // Tokens that the layer with the shortest sight sees; 0: all. Masked tokens stay where one is.
  virtual int64_t smallest_window() const = 0;
  // Whether training draws random numbers by token, so that batches need its keys.
  virtual bool has_token_draws() const { return false; }

  // Makes all buffers for micro-batches of up to `shape`, so that none of them allocates.
  virtual void reserve(const MicroBatchSize& shape) = 0;
  // One micro-batch: adds sum of token_weight * cross entropy to `loss` [1] float64, and its
  // gradient to the strategy.
  virtual void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                const at::Tensor& loss) = 0;
  // For attention on a GPU, of models whose attention is the engine's.
  virtual void use_cudnn(bool) {}
  // Without gradients, and without noise.
  virtual void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                            const at::Tensor& loss) = 0;
  // [tokens, vocab_size] float32 for all tokens of the batch.
  virtual at::Tensor logits(const Batch& batch, Strategy& strategy) = 0;

  // Whether the norm of whole gradients is that of torch's own function, rounding included.
  virtual bool norms_by_tensor() const { return false; }

  virtual int64_t buffer_bytes() const = 0;

  virtual int64_t num_parameters() const { return elements_of(units()); }
  virtual int64_t num_trained_parameters() const { return num_parameters(); }
};

}  // namespace fastsft
