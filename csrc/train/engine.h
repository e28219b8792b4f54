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
  int64_t num_threads = 0;    // 0: as torch is set
  int64_t max_positions = 0;  // longest example, if known
  bool prefetch = true;       // gathers one unit ahead
  // Nothing overlaps: collectives are waited for at once, and the host waits for every micro-batch.
  // Slow; shows where a step fails, and what overlap is worth.
  bool blocking = false;
  // Seconds after which a process that waits for other ranks ends with a message; 0: never.
  double timeout_seconds = 0;
  // How many of the newest steps `take_results` leaves under way; none: 0 on the CPU, else 1.
  std::optional<size_t> results_behind;
};

// Options of one optimizer step.
struct StepOptions {
  OptimizerOptions optimizer;
  double max_grad_norm = 1;  // 0: no clipping
  // Multiplies the loss before backward, and is taken off again before the norm: gradients that
  // float16 cannot hold become what it can (torch.amp.GradScaler).
  double loss_scale = 1;
  double label_smoothing = 0;
  // A step with a greater loss, or one that is not finite, changes nothing.
  double loss_limit = std::numeric_limits<double>::infinity();
  // Compute the gradients twice; if their bits differ on any rank, the step changes nothing.
  bool replay = false;
  EmbeddingNoise noise = {};  // NEFTune noise added to the embeddings
  bool find_packed = false;   // BatchRules
  int64_t dropout_seed = 0;   // of the adapters' dropout in this step
};

// Conversations of one micro-batch and what multiplies the token losses of each.
struct MicroBatch {
  std::span<const int64_t> rows;
  std::span<const double> weights;
};

// Options of a loss without an update.
struct LossOptions {
  double label_smoothing = 0;
  bool find_packed = false;  // BatchRules
  // Seed of the adapters' dropout when gradients are computed; none: no dropout.
  std::optional<int64_t> dropout_seed = {};
};

// The sizes that the upload of a step depends on.
struct StepSize {
  int64_t tokens = 0;
  int64_t labels = 0;
  int64_t micro_batches = 1;
};

// The model with its parameters, gradients and optimizer state on this rank. All methods but the
// accessors are collective: every rank calls them in the same order. Not safe for use from two
// threads.
class Engine {
 public:
  // Of the native model of `config_json`, or of `model`, which it is the configuration of.
  Engine(const std::string& config_json, const EngineOptions& options,
         std::unique_ptr<Model> model = nullptr);

  // Makes all memory of training for micro-batches of up to `micro_batch` and steps of up to `step`
  // on this rank: steps within them allocate nothing but what collectives clone. Local.
  void reserve(const MicroBatchSize& micro_batch, const StepSize& step);

  // One optimizer step. Every rank must pass the same number of micro-batches (they may be empty);
  // otherwise the ranks deadlock until the group times out. On a device the step is enqueued only;
  // nothing in it waits for the device.
  void begin_step(const TokenDataset& dataset, std::span<const MicroBatch> micro_batches,
                  const StepOptions& options);
  // Results of finished steps, oldest first, each once; leaves the newest `results_behind` in
  // flight unless `all`. Blocks.
  std::vector<StepResult> take_results(bool all);
  // Tunes the GEMMs of one micro-batch on a GPU (ops/gemm/tuned_gemms.h) that have no tuned
  // algorithm yet. Changes neither parameters nor states; its gradients are discarded.
  void tune_gemms(const TokenDataset& dataset, const MicroBatch& micro_batch);
  // From now on, attention on a GPU uses cuDNN if it supports the rows, else flash attention.
  void use_cudnn(bool use) { model_->use_cudnn(use); }
  // Gradient digests of the last step with `replay` on this rank.
  const ReplayDigests& replay_digests() const { return replay_digests_; }
  // Checksums of the states that this rank holds and of the weights it computes with. Collective.
  std::vector<UnitDigest> state_digests();
  // This rank's sum of weight * cross entropy, without gradients.
  double loss(const TokenDataset& dataset, const MicroBatch& micro_batch,
              const LossOptions& options);
  // Forward and backward of one micro-batch without an update: the loss, and the gradients of all
  // tensors by name, summed over ranks. For tests of small models.
  std::pair<double, std::map<std::string, at::Tensor>> gradients(const TokenDataset& dataset,
                                                                 const MicroBatch& micro_batch,
                                                                 const LossOptions& options);
  // [tokens, vocab_size] float32 on the CPU; `lengths` add up to the number of ids.
  at::Tensor logits(std::span<const int64_t> ids, std::span<const int64_t> lengths);
  // The same for all tokens of `rows`.
  at::Tensor row_logits(const TokenDataset& dataset, std::span<const int64_t> rows,
                        bool find_packed);
  // float32 copies of all parameters by name, on the CPU. For tests and small models.
  std::map<std::string, at::Tensor> named_parameters();
  // The same of trained parameters.
  std::map<std::string, at::Tensor> trained_parameters();

  // Copies this rank's part of a whole tensor (any floating dtype, any device) into the master
  // weights; shapes must agree. Call `publish` after the last one. Not collective.
  void set_parameter(const std::string& name, const at::Tensor& value);
  void publish();
  // The option with this value from the next step on. Local.
  void set_sync_each_batch(bool each);

  const std::string& config_json() const { return config_json_; }
  at::Device device() const { return options_.device; }
  int64_t vocab_size() const { return model_->vocab_size(); }
  // Trained units.
  const std::vector<ParamUnit>& units() const { return model_->units(); }
  const std::vector<ParamUnit>& frozen_units() const { return model_->frozen_units(); }
  const AdapterOptions& adapters() const { return options_.adapters; }
  // All ranks.
  Communicator& communicator() { return groups_.all(); }
  Strategy& strategy() { return *strategy_; }
  SavedForm& saved_form() { return saved_form_; }
  // Waits for the steps in flight, until the host may read and write states on the host and
  // parameters that are being gathered.
  void await_states();
  // Good steps so far.
  int64_t step_count() const;
  void set_step_count(int64_t count);

  // Records spans of this process (core/trace.h), the newest `capacity` of them, until `stop`,
  // which waits for the device.
  void start_trace(size_t capacity);
  std::vector<trace::RecordedSpan> stop_trace();
  int64_t num_parameters() const { return model_->num_parameters(); }
  int64_t num_trained_parameters() const { return model_->num_trained_parameters(); }
  int64_t num_non_embedding_parameters() const {
    return num_parameters() - model_->embedding_parameters();
  }
  // Bytes held now: parameters, gradients, optimizer, offloaded (on the host), buffers (whole
  // units), activations, and the uploaded batches.
  std::map<std::string, int64_t> memory() const;

 private:
  void check_usable() const;
  void await_device(const char* what);  // the host waits
  // How accumulate computes gradients.
  struct AccumulateOptions {
    double label_smoothing = 0;
    EmbeddingNoise noise = {};              // of the step
    int64_t rounding_seed = 0;              // likewise
    std::optional<int64_t> dropout_seed{};  // none: no dropout
  };
  // `draws`: rows get token keys, if the model draws random numbers by token.
  BatchRules batch_rules(bool find_packed, bool draws) const;
  HostBatch batch_of(const TokenDataset& dataset, const MicroBatch& micro_batch,
                     const BatchRules& rules);
  at::Tensor logits_of(const HostBatch& host);
  // Runs `work`. After a failed step the ranks are out of sync; later calls throw instead of
  // deadlocking.
  template <typename Work>
  auto guarded(const Work& work) -> decltype(work());
  void update(const StepOptions& options, const at::Tensor& totals);
  // Sums loss and squared norm over the ranks. NaN if any rank has a bad one.
  void agree_on_totals(double loss_limit, const at::Tensor& totals);
  // Calls `accumulate` twice. Sets `totals` to NaN if the gradients differ.
  void accumulate_twice(std::span<const HostBatch> batches, const AccumulateOptions& options,
                        const at::Tensor& totals);
  // Forward and backward of all micro-batches: adds to `loss` and to the strategy's gradients.
  void accumulate(std::span<const HostBatch> batches, const AccumulateOptions& options,
                  const at::Tensor& loss);
  // One batch on the device for `work`.
  template <typename Work>
  void with_batch(const HostBatch& batch, const Work& work);
  at::Tensor zero_sum() const;  // [1] float64 on the device
  std::map<std::string, at::Tensor> gather_slots(bool gradients, bool with_held);
  // Copies of a unit's tensors from this rank's range of it; `sharded`: others have the rest.
  void gather_slots_of(const ParamUnit& unit, const at::Tensor& held, bool sharded, bool with_held,
                       std::map<std::string, at::Tensor>& to);

  std::string config_json_;
  EngineOptions options_;
  Watchdog watchdog_;  // before the communicators, which use it
  RankGroups groups_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Optimizer> optimizer_;
  SavedForm saved_form_;
  at::Tensor step_scalars_;  // ops/gradient/step_scalars.h
  BatchUpload upload_;
  StepResults results_;
  std::unique_ptr<DeviceClock> clock_;  // while a trace is recorded on a device
  int64_t begun_steps_ = 0;
  ReplayDigests replay_digests_;
  bool broken_ = false;
};

}  // namespace fastsft
