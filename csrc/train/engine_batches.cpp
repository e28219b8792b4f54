// Engine methods that make the model's batches from a step's rows and accumulate their gradients.

#include "train/engine.h"

#include <limits>

#include "data/context_slice.h"

namespace fastsft {

BatchRules Engine::batch_rules(bool find_packed, bool draws) const {
  return {.vocab_size = vocab_size(),
          .window = model_->smallest_window(),
          .find_packed = find_packed,
          .token_keys = draws && model_->has_token_draws(),
          .cudnn = model_->cudnn_heads()};
}

HostBatch Engine::batch_of(const TokenDataset& dataset, const MicroBatch& micro_batch,
                           const BatchRules& rules) {
  check_usable();
  try {
    HostBatch batch = make_batch(dataset, micro_batch.rows, micro_batch.weights, rules);
    Communicator& context = groups_.context();
    if (context.world_size() == 1) return batch;
    return context_slice(batch, context.rank(), context.world_size());
  } catch (
      ...) {  // the other ranks are in this step already; a later collective would not match theirs
    broken_ = communicator().world_size() > 1;
    throw;
  }
}

void Engine::accumulate(std::span<const HostBatch> batches, const AccumulateOptions& options,
                        const at::Tensor& loss) {
  const std::vector<Batch> uploaded = upload_.begin(batches);
  for (size_t i = 0; i < uploaded.size(); ++i) {
    upload_.await(i);
    strategy_->gradients().begin_micro_batch(i + 1 == uploaded.size());
    // A dropout seed replaces the step number. After a resume the seed is the same as in an
    // uninterrupted run, but `begun_steps_` may differ, because a checkpoint's step count leaves
    // out skipped steps.
    const int64_t step = options.dropout_seed.value_or(begun_steps_);
    model_->forward_backward(uploaded[i], *strategy_,
                             {.label_smoothing = options.label_smoothing,
                              .noise = options.noise.of_micro_batch(i),
                              .draws = {.seed = options.rounding_seed,
                                        .step = step,
                                        .micro_batch = static_cast<int64_t>(i),
                                        .dropout_seed = options.dropout_seed.value_or(0)}},
                             loss);
    if (options_.blocking) await_device("micro-batch");
  }
  upload_.finish();
  strategy_->gradients().finish();
}

void Engine::accumulate_twice(std::span<const HostBatch> batches, const AccumulateOptions& options,
                              const at::Tensor& totals) {
  const auto digest_of_one = [&] {
    GradientDigest digest(strategy_->gradients());
    accumulate(batches, options, totals.narrow(0, 0, 1));
    return digest.value(totals, units().size());
  };
  replay_digests_.first = digest_of_one();
  strategy_->gradients().clear();
  totals.zero_();
  replay_digests_.second = digest_of_one();
  if (replay_digests_.first != replay_digests_.second) {
    totals.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace fastsft
