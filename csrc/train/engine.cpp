#include "train/engine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/rank_status.h"
#include "core/start_threads.h"
#include "ops/gemm/tuned_gemms.h"
#include "ops/gradient/gradient.h"
#include "train/engine_model.h"

namespace fastsft {
namespace {

std::optional<at::Device> other_than_cpu(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return device;
}

}  // namespace

Engine::Engine(const std::string& config_json, const EngineOptions& options,
               std::unique_ptr<Model> model)
    : config_json_(config_json),
      options_(options),
      watchdog_(options.groups.gather.empty() ? 0 : options.timeout_seconds),
      groups_(options.groups, watchdog_),
      model_(make_model(config_json, options, groups_, std::move(model))),
      step_scalars_(at::zeros({kNumStepScalars},
                              at::TensorOptions().dtype(at::kDouble).device(options.device))),
      upload_(options.device),
      results_(options.device, options.results_behind.value_or(options.device.is_cpu() ? 0 : 1)) {
  const c10::OptionalDeviceGuard device_guard(other_than_cpu(options.device));
  if (options.num_threads > 0) {
    // If the system denies them a thread, at::parallel_for and torch's own pool wait forever or end
    // the process. So check first.
    require_threads(2 * (static_cast<size_t>(options.num_threads) - 1), "the engine");
    at::set_num_threads(static_cast<int>(options.num_threads));
  }
  const OptimizerKind& optimizer = find_optimizer(options.state);
  strategy_ = make_strategy({.units = units(),
                             .groups = groups_,
                             .options = options.state,
                             .device = options.device,
                             .resident_units = model_->resident_units(),
                             .prefetch = options.prefetch && !options.blocking,
                             .blocking = options.blocking,
                             .frozen_units = frozen_units(),
                             .resident_frozen_units = model_->resident_frozen_units(),
                             .layout = optimizer.state});
  optimizer_ = optimizer.make(*strategy_);
}

template <typename Work>
auto Engine::guarded(const Work& work) -> decltype(work()) {
  check_usable();
  broken_ = true;
  const c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device_guard(other_than_cpu(options_.device));
  auto result = work();
  broken_ = false;
  return result;
}

void Engine::check_usable() const {
  if (!broken_) return;
  throw_runtime(
      "an earlier step of this engine failed half way; start again from the last checkpoint");
}

template <typename Work>
void Engine::with_batch(const HostBatch& batch, const Work& work) {
  const std::vector<Batch> uploaded = upload_.begin({&batch, 1});
  upload_.await(0);
  work(uploaded[0]);
  upload_.finish();
}

at::Tensor Engine::zero_sum() const { return at::zeros({1}, step_scalars_.options()); }

void Engine::reserve(const MicroBatchSize& micro_batch, const StepSize& step) {
  const c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device_guard(other_than_cpu(options_.device));
  model_->reserve(micro_batch);
  upload_.reserve(most_packed_bytes(step.tokens, step.labels, step.micro_batches),
                  static_cast<size_t>(step.micro_batches));
}

void Engine::begin_step(const TokenDataset& dataset, std::span<const MicroBatch> micro_batches,
                        const StepOptions& options) {
  require(!micro_batches.empty(), "a step needs a micro-batch (an empty one is allowed)");
  // 1. Make all batches before any collective, so that bad rows are found on this rank alone.
  std::vector<HostBatch> batches;
  const BatchRules rules = batch_rules(options.find_packed, /*draws=*/true);
  for (const auto& micro_batch : micro_batches) {
    batches.push_back(batch_of(dataset, micro_batch, rules));
    for (float& weight : batches.back().token_weights) {
      weight *= static_cast<float>(options.loss_scale);
    }
  }
  guarded([&] {
    const trace::Span span(trace::Track::kHost, "step");
    RankStatus::instance().set_step(++begun_steps_);
    const at::Tensor totals = step_scalars_.narrow(0, kStepLoss, 2);  // loss, squared norm
    totals.zero_();
    // 2. Loss and gradients, accumulated over the micro-batches.
    const AccumulateOptions passes = {.label_smoothing = options.label_smoothing,
                                      .noise = options.noise,
                                      .rounding_seed = options.optimizer.rounding_seed,
                                      .dropout_seed = options.dropout_seed};
    if (options.replay) {
      accumulate_twice(batches, passes, totals);
    } else {
      accumulate(batches, passes, totals.narrow(0, 0, 1));
    }
    // 3. Gradient norm, clipping and the optimizer.
    update(options, totals);
    // 4. Enqueue the result's transfer to the host.
    results_.push(step_scalars_);
    return 0;
  });
}

void Engine::agree_on_totals(double loss_limit, const at::Tensor& totals) {
  const at::Tensor loss = totals.narrow(0, 0, 1), norm = totals.narrow(0, 1, 1);
  if (strategy_->replicated() && communicator().world_size() > 1) {
    // Every rank has the whole norm already. The sum only spreads a NaN: 0 * sum is 0 or NaN. This
    // rank's norm is kept where the gradient scale is written later.
    const at::Tensor own = step_scalars_.narrow(0, kStepGradScale, 1);
    own.copy_(norm);
    communicator().all_reduce_sum(totals, "loss and gradient norm")->wait();
    norm.mul_(0).add_(own);
  } else {
    communicator().all_reduce_sum(totals, "loss and gradient norm")->wait();
  }
  if (std::isfinite(loss_limit)) {
    norm.masked_fill_(at::gt(loss, loss_limit), std::numeric_limits<double>::quiet_NaN());
  }
}

void Engine::update(const StepOptions& options, const at::Tensor& totals) {
  const ScopedPhase phase("update");
  const trace::Span span(trace::Track::kCompute, "update");
  // 1. The gradients' squared norm. Only one replica adds to the sum over all ranks.
  const at::Tensor norm = totals.narrow(0, 1, 1);
  if (model_->norms_by_tensor() && strategy_->replicated()) {
    add_tensor_norms_squared(*strategy_, norm);
  } else if (strategy_->replica_index() == 0) {
    add_local_norm_squared(*strategy_, norm);
  }
  // 2. Undo the loss scale, and sum over the ranks.
  if (options.loss_scale != 1) {
    totals.narrow(0, 0, 1).div_(options.loss_scale);
    norm.div_(options.loss_scale * options.loss_scale);
  }
  agree_on_totals(options.loss_limit, totals);
  // 3. grad_scale = min(1, max_grad_norm / norm) / loss_scale; NaN leaves everything unchanged.
  compute_grad_scale(step_scalars_, options.max_grad_norm);
  if (options.loss_scale != 1) {
    step_scalars_.narrow(0, kStepGradScale, 1).div_(options.loss_scale);
  }
  // 4. The optimizer, unit by unit.
  optimizer_->update(options.optimizer, step_scalars_);
  model_->weights_changed(ChangedWeights::kTrained);
  strategy_->gradients().clear();
}

std::vector<UnitDigest> Engine::state_digests() {
  return guarded([&] {
    await_states();
    return digest_states(*strategy_, units());
  });
}

std::vector<StepResult> Engine::take_results(bool all) {
  return guarded([&] {
    const ScopedPhase phase("waiting for a step's result");
    const Watchdog::Wait watched(watchdog_);
    return results_.take(all);
  });
}

void Engine::start_trace(size_t capacity) {
  const c10::OptionalDeviceGuard device_guard(other_than_cpu(options_.device));
  if (!options_.device.is_cpu()) clock_ = std::make_unique<DeviceClock>(options_.device);
  trace::Recorder::instance().start(capacity, clock_.get());
}

std::vector<trace::RecordedSpan> Engine::stop_trace() {
  const c10::OptionalDeviceGuard device_guard(other_than_cpu(options_.device));
  auto spans = trace::Recorder::instance().stop();
  clock_.reset();
  return spans;
}

double Engine::loss(const TokenDataset& dataset, const MicroBatch& micro_batch,
                    const LossOptions& options) {
  const HostBatch host =
      batch_of(dataset, micro_batch, batch_rules(options.find_packed, /*draws=*/false));
  return guarded([&] {
    const ScopedPhase phase("evaluation");
    const at::Tensor sum = zero_sum();
    with_batch(host, [&](const Batch& batch) {
      model_->forward_loss(batch, *strategy_, options.label_smoothing, sum);
    });
    return *sum.cpu().data_ptr<double>();
  });
}

at::Tensor Engine::logits(std::span<const int64_t> ids, std::span<const int64_t> lengths) {
  return logits_of(
      make_unlabelled_batch(ids, lengths, batch_rules(/*find_packed=*/false, /*draws=*/false)));
}

at::Tensor Engine::row_logits(const TokenDataset& dataset, std::span<const int64_t> rows,
                              bool find_packed) {
  return logits_of(make_unlabelled_batch(dataset, rows, batch_rules(find_packed, /*draws=*/false)));
}

at::Tensor Engine::logits_of(const HostBatch& host) {
  return guarded([&] {
    at::Tensor result;
    with_batch(host, [&](const Batch& batch) { result = model_->logits(batch, *strategy_); });
    return result.cpu();
  });
}

std::pair<double, std::map<std::string, at::Tensor>> Engine::gradients(
    const TokenDataset& dataset, const MicroBatch& micro_batch, const LossOptions& options) {
  const HostBatch host = batch_of(
      dataset, micro_batch, batch_rules(options.find_packed, options.dropout_seed.has_value()));
  return guarded([&] {
    const at::Tensor sum = zero_sum();
    accumulate({&host, 1},
               {.label_smoothing = options.label_smoothing, .dropout_seed = options.dropout_seed},
               sum);
    communicator().all_reduce_sum(sum, "loss")->wait();
    auto tensors = gather_slots(true, false);
    strategy_->gradients().clear();
    return std::make_pair(*sum.cpu().data_ptr<double>(), std::move(tensors));
  });
}

void Engine::tune_gemms(const TokenDataset& dataset, const MicroBatch& micro_batch) {
  const HostBatch host = batch_of(dataset, micro_batch, batch_rules(false, /*draws=*/false));
  guarded([&] {
    const ScopedPhase phase("tuning of products");
    const GemmTuning tuning;
    accumulate({&host, 1}, {}, zero_sum());
    strategy_->gradients().clear();
    return 0;
  });
}

std::map<std::string, at::Tensor> Engine::named_parameters() {
  return guarded([&] {
    auto result = gather_slots(false, true);
    for (size_t i = 0; i < frozen_units().size(); ++i) {
      const at::Tensor whole = strategy_->frozen().gather(i);
      gather_slots_of(frozen_units()[i], whole, false, true, result);
      strategy_->frozen().release(i);
    }
    return result;
  });
}

std::map<std::string, at::Tensor> Engine::trained_parameters() {
  return guarded([&] { return gather_slots(false, false); });
}

void Engine::await_device(const char* what) {
  DeviceEvent done(options_.device);
  done.record();
  done.synchronize(what);
}

void Engine::await_states() {
  const bool was_broken = std::exchange(broken_, true);
  strategy_->await_gathers();
  broken_ = was_broken;
  if (strategy_->offloaded_bytes() > 0) await_device("states");
}

void Engine::publish() {
  guarded([&] {
    strategy_->refresh_compute_weights();
    model_->weights_changed(ChangedWeights::kAll);
    return 0;
  });
}

void Engine::set_sync_each_batch(bool each) {
  guarded([&] {
    strategy_->set_sync_each_batch(each);
    return 0;
  });
}

void Engine::set_tile_tokens(int64_t most) {
  check_usable();
  options_.state.tile_tokens = most;
  options_.state.check();
  model_->set_tile_tokens(most);
}

int64_t Engine::step_count() const {
  return static_cast<int64_t>(step_scalars_.cpu().data_ptr<double>()[kStepNumber]);
}

void Engine::set_step_count(int64_t count) {
  step_scalars_.narrow(0, kStepNumber, 1).fill_(static_cast<double>(count));
  begun_steps_ = count;
}

std::map<std::string, int64_t> Engine::memory() const {
  return {{"parameters", strategy_->parameter_bytes() + strategy_->frozen().parameter_bytes() +
                             model_->weight_copy_bytes()},
          {"gradients", strategy_->gradients().nbytes()},
          {"optimizer", strategy_->optimizer_bytes() + optimizer_->nbytes()},
          {"offloaded", strategy_->offloaded_bytes()},
          {"buffers", strategy_->buffer_bytes() + strategy_->frozen().buffer_bytes()},
          {"activations", model_->buffer_bytes()},
          {"inputs on the host", model_->host_bytes()},
          {"batches", upload_.nbytes()}};
}

}  // namespace fastsft
