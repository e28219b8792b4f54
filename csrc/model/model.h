#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "data/attention_ranges.h"
#include "data/batch.h"
#include "model/embedding_noise.h"
#include "model/op_memory.h"
#include "shard/param_unit.h"
#include "shard/strategy.h"

namespace fastsft {

// The seeds and counters for a micro-batch's random numbers; equal values draw equal numbers.
struct DrawPlace {
  int64_t seed = 0;
  int64_t step = 0;  // counts from 1, also over resumes
  int64_t micro_batch = 0;
  int64_t dropout_seed = 0;  // seed of the adapters' dropout, which draws by token
};

// Options for a micro-batch's training pass.
struct TrainingPass {
  double label_smoothing = 0;
  EmbeddingNoise noise = {};
  DrawPlace draws = {};
};

// Which weights may have changed: the trained weights, by an update, or all weights.
enum class ChangedWeights { kTrained, kAll };

// A language model over flat units. It gathers units from a Strategy and gives gradients back,
// independently of the kind of strategy. Batches and parameters are on the same device. Every rank
// calls the same methods, with an empty batch if it has no rows.
class Model {
 public:
  virtual ~Model() = default;

  // Return the trained and the frozen units.
  virtual const std::vector<ParamUnit>& units() const = 0;
  virtual const std::vector<ParamUnit>& frozen_units() const { return StrategyContext::no_units(); }
  // Return how many units stay gathered besides the current unit and its neighbour.
  virtual size_t resident_units() const = 0;
  virtual size_t resident_frozen_units() const { return 0; }
  virtual int64_t vocab_size() const = 0;
  // Returns the token embedding's element count, for counting floating point operations.
  virtual int64_t embedding_parameters() const = 0;
  // Returns the smallest attention window in tokens; 0: no window. With a window, masked tokens
  // stay in the batch.
  virtual int64_t smallest_window() const = 0;
  // True if training draws random numbers by token, so that batches need token keys.
  virtual bool has_token_draws() const { return false; }

  // Allocates all buffers for micro-batches of up to `shape`.
  virtual void reserve(const MicroBatchSize& shape) = 0;
  // Runs a micro-batch's forward and backward. Adds sum(token_weight * cross entropy) to `loss` [1]
  // float64, and the gradient to the strategy's gradients.
  virtual void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                const at::Tensor& loss) = 0;
  // Drops what the model has made of weights. Call after they have changed.
  virtual void weights_changed(ChangedWeights) {}
  // Changes StateOptions::tile_tokens for later micro-batches. No-op for models without tiles.
  virtual void set_tile_tokens(int64_t) {}
  // Selects cuDNN for attention on a GPU. No-op if the engine does not compute the model's
  // attention.
  virtual void use_cudnn(bool) {}
  // Returns the heads if cuDNN computes attention.
  virtual std::optional<HeadShape> cudnn_heads() const { return std::nullopt; }
  // Compiles cuDNN's attention ahead of its first use. `shapes`: as CudnnInputs::shapes. Returns
  // how many of them cuDNN computes.
  virtual int64_t compile_attention(at::IntArrayRef /*shapes*/) { return 0; }
  // Adds the loss without gradients and without noise.
  virtual void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                            const at::Tensor& loss) = 0;
  // Returns the logits [tokens, vocab_size] float32 for all tokens in the batch.
  virtual at::Tensor logits(const Batch& batch, Strategy& strategy) = 0;

  // True if the gradient norm must equal that of torch's own function, including rounding.
  virtual bool norms_by_tensor() const { return false; }

  // Returns the bytes of the weights that the model keeps in another form.
  virtual int64_t weight_copy_bytes() const { return 0; }
  virtual int64_t buffer_bytes() const = 0;
  // Returns the bytes of activations on the host.
  virtual int64_t host_bytes() const { return 0; }

  virtual int64_t num_parameters() const { return elements_of(units()); }
  virtual int64_t num_trained_parameters() const { return num_parameters(); }
};

}  // namespace fastsft
