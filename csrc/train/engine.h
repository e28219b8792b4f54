#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/saved_form.h"
#include "core/trace.h"
#include "core/watchdog.h"
#include "data/batch_upload.h"
#include "data/token_dataset.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "shard/communicator.h"
#include "shard/strategy.h"
#include "train/device_clock.h"
#include "train/state_digest.h"
#include "train/step_results.h"

namespace fastsft {

struct EngineOptions {
  at::Device device = at::kCPU;
  StateOptions state;
  AdapterOptions adapters;
  std::string recompute = "selective";
  GroupNames groups;
  int64_t num_threads = 0;    // 0: torch's setting
  int64_t max_positions = 0;  // tokens of the longest conversation; 0: unknown
  bool prefetch = true;       // gather the next unit ahead of its use
  // For tests and measurements: nothing overlaps. Collectives are waited for at once, and the host
  // waits for every micro-batch. Slow, but shows where a step fails and how much time overlap
  // saves.
  bool blocking = false;
  // Seconds after which a process that waits for other ranks ends with a message; 0: never.
  double timeout_seconds = 0;
  // How many of the newest steps `take_results` leaves in flight; none: 0 on the CPU, else 1.
  std::optional<size_t> results_behind;
};

// Options of an optimizer step.
struct StepOptions {
  OptimizerOptions optimizer;
  double max_grad_norm = 1;  // 0: no clipping
  // Factor of the loss before backward; the gradient norm and the update divide by it. It keeps
  // small float16 gradients from underflow (torch.amp.GradScaler).
  double loss_scale = 1;
  double label_smoothing = 0;
  // A step changes nothing if its loss is greater than this limit or not finite.
  double loss_limit = std::numeric_limits<double>::infinity();
  // Compute the gradients twice. If their bits differ on any rank, the step changes nothing.
  bool replay = false;
  EmbeddingNoise noise = {};  // NEFTune noise added to the embeddings
  bool find_packed = false;   // as in BatchRules
  int64_t dropout_seed = 0;   // seed of the adapters' dropout in this step
};

// A micro-batch's rows, and a factor per row for its token losses.
struct MicroBatch {
  std::span<const int64_t> rows;
  std::span<const double> weights;
};

// Options for a loss computation without an update.
struct LossOptions {
  double label_smoothing = 0;
  bool find_packed = false;  // as in BatchRules
  // Seed of the adapters' dropout when gradients are computed; none: no dropout.
  std::optional<int64_t> dropout_seed = {};
};

// The sizes that determine the memory for a step's upload.
struct StepSize {
  int64_t tokens = 0;
  int64_t labels = 0;
  int64_t micro_batches = 1;
};

// A model with its parameters, gradients and optimizer state on this rank. All methods but the
// accessors are collective: every rank calls them in the same order. Not thread-safe.
class Engine {
 public:
  // Makes an engine for `model`, or without `model` for the native model that `config_json`
  // describes.
  Engine(const std::string& config_json, const EngineOptions& options,
         std::unique_ptr<Model> model = nullptr);

  // Allocates this rank's training memory for micro-batches up to `micro_batch` and steps up to
  // `step`. Within these sizes a step allocates only clones for collectives. Local.
  void reserve(const MicroBatchSize& micro_batch, const StepSize& step);

  // Runs an optimizer step. All ranks must pass equally many micro-batches (they may be
  // empty); otherwise the ranks deadlock until the group times out. On a device the step is only
  // enqueued; the host never waits for the device.
  void begin_step(const TokenDataset& dataset, std::span<const MicroBatch> micro_batches,
                  const StepOptions& options);
  // Returns the results of finished steps, oldest first, each once. Leaves the newest
  // `results_behind` steps in flight unless `all`. Blocks.
  std::vector<StepResult> take_results(bool all);
  // Tunes a micro-batch's GEMMs on a GPU (ops/gemm/tuned_gemms.h) that have no tuned algorithm
  // yet. Parameters and states do not change; the gradients are discarded.
  void tune_gemms(const TokenDataset& dataset, const MicroBatch& micro_batch);
  // Selects cuDNN for later attention on a GPU if it supports the rows; otherwise flash attention
  // runs.
  void use_cudnn(bool use) { model_->use_cudnn(use); }
  // Compiles cuDNN's attention for these shapes: [conversations, longest] of each. Local.
  int64_t compile_attention(const std::vector<int64_t>& shapes) {
    return model_->compile_attention(shapes);
  }
  // Returns this rank's gradient digests from the last step with `replay`.
  const ReplayDigests& replay_digests() const { return replay_digests_; }
  // Returns checksums over this rank's states and compute weights. Collective.
  std::vector<UnitDigest> state_digests();
  // Returns this rank's sum of weight * cross entropy, without gradients.
  double loss(const TokenDataset& dataset, const MicroBatch& micro_batch,
              const LossOptions& options);
  // Runs forward and backward without an update. Returns the loss, and all gradients by tensor
  // name, summed over ranks. For tests with small models.
  std::pair<double, std::map<std::string, at::Tensor>> gradients(const TokenDataset& dataset,
                                                                 const MicroBatch& micro_batch,
                                                                 const LossOptions& options);
  // Returns the logits [tokens, vocab_size], float32 on the CPU. `lengths` add up to the number of
  // ids.
  at::Tensor logits(std::span<const int64_t> ids, std::span<const int64_t> lengths);
  // Returns the logits for all tokens in `rows`.
  at::Tensor row_logits(const TokenDataset& dataset, std::span<const int64_t> rows,
                        bool find_packed);
  // Returns float32 copies of all parameters by name, on the CPU. For tests and small models.
  std::map<std::string, at::Tensor> named_parameters();
  // Returns float32 copies of the trained parameters by name, on the CPU.
  std::map<std::string, at::Tensor> trained_parameters();

  // Copies this rank's part of a whole tensor (any floating dtype, any device) into the master
  // weights; shapes must agree. Call `publish` after the last parameter. Not collective.
  void set_parameter(const std::string& name, const at::Tensor& value);
  void publish();
  // Set the options with these names for later steps. Local.
  void set_sync_each_batch(bool each);
  void set_tile_tokens(int64_t most);

  const std::string& config_json() const { return config_json_; }
  at::Device device() const { return options_.device; }
  int64_t vocab_size() const { return model_->vocab_size(); }
  // Returns the trained units.
  const std::vector<ParamUnit>& units() const { return model_->units(); }
  const std::vector<ParamUnit>& frozen_units() const { return model_->frozen_units(); }
  const AdapterOptions& adapters() const { return options_.adapters; }
  // Returns the communicator of all ranks.
  Communicator& communicator() { return groups_.all(); }
  // Returns the ranks that share the tokens of a micro-batch.
  const Communicator& context() { return groups_.context(); }
  Strategy& strategy() { return *strategy_; }
  SavedForm& saved_form() { return saved_form_; }
  // Waits for steps in flight and for gathers. Then the host may read and write states and
  // parameters.
  void await_states();
  // Returns how many steps have changed the parameters.
  int64_t step_count() const;
  void set_step_count(int64_t count);

  // Starts to record this process's spans (core/trace.h) and keeps the newest `capacity` spans.
  // `stop_trace` waits for the device.
  void start_trace(size_t capacity);
  std::vector<trace::RecordedSpan> stop_trace();
  int64_t num_parameters() const { return model_->num_parameters(); }
  int64_t num_trained_parameters() const { return model_->num_trained_parameters(); }
  int64_t num_non_embedding_parameters() const {
    return num_parameters() - model_->embedding_parameters();
  }
  // Returns the bytes held now: parameters, gradients, optimizer, offloaded (on the host), buffers
  // (whole units), activations, block inputs on the host, and uploaded batches.
  std::map<std::string, int64_t> memory() const;

 private:
  void check_usable() const;
  void await_device(const char* what);  // makes the host wait
  // Options of `accumulate`.
  struct AccumulateOptions {
    double label_smoothing = 0;
    EmbeddingNoise noise = {};              // the step's noise
    int64_t rounding_seed = 0;              // the step's seed
    std::optional<int64_t> dropout_seed{};  // none: no dropout
  };
  // `draws`: fill `token_keys` if the model draws random numbers per token.
  BatchRules batch_rules(bool find_packed, bool draws) const;
  HostBatch batch_of(const TokenDataset& dataset, const MicroBatch& micro_batch,
                     const BatchRules& rules);
  at::Tensor logits_of(const HostBatch& host);
  // Runs `work`. After a failure the ranks do not match any more; later calls throw instead of
  // deadlocking.
  template <typename Work>
  auto guarded(const Work& work) -> decltype(work());
  void update(const StepOptions& options, const at::Tensor& totals);
  // Sums loss and squared norm over the ranks. The norm becomes NaN if any rank has a bad value.
  void agree_on_totals(double loss_limit, const at::Tensor& totals);
  // Calls `accumulate` twice, and sets `totals` to NaN if the gradients differ.
  void accumulate_twice(std::span<const HostBatch> batches, const AccumulateOptions& options,
                        const at::Tensor& totals);
  // Runs forward and backward of all micro-batches. Adds to `loss` and to the strategy's gradients.
  void accumulate(std::span<const HostBatch> batches, const AccumulateOptions& options,
                  const at::Tensor& loss);
  // Uploads a batch and calls `work` with it.
  template <typename Work>
  void with_batch(const HostBatch& batch, const Work& work);
  at::Tensor zero_sum() const;  // [1] float64 on the device
  std::map<std::string, at::Tensor> gather_slots(bool gradients, bool with_held);
  // Adds copies of a unit's tensors to `to`. `held`: this rank's range; `sharded`: other ranks have
  // the rest.
  void gather_slots_of(const ParamUnit& unit, const at::Tensor& held, bool sharded, bool with_held,
                       std::map<std::string, at::Tensor>& to);

  std::string config_json_;
  EngineOptions options_;
  Watchdog watchdog_;  // declared before the communicators, which use it
  RankGroups groups_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Optimizer> optimizer_;
  SavedForm saved_form_;
  at::Tensor step_scalars_;  // ops/gradient/step_scalars.h
  BatchUpload upload_;
  StepResults results_;
  std::unique_ptr<DeviceClock> clock_;  // set while a device's trace is recorded
  int64_t begun_steps_ = 0;
  ReplayDigests replay_digests_;
  bool broken_ = false;
};

}  // namespace fastsft
