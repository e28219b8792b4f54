#include <ATen/ops/zeros.h>

#include "shard/strategy.h"

namespace fastsft {
namespace {

// Parameters, gradients and optimizer state by ranges; a unit is whole only around its use.
class FullShard : public Strategy {
 public:
  explicit FullShard(const StrategyContext& context)
      : Strategy(context),
        buffers_(context_.units, communicator().world_size(), 2 + context.resident_units,
                 context.compute(), trace::Lane::kParameters),
        pending_(context.units.size()) {
    for (const auto& unit : context_.units) {
      const int64_t size = unit.shard_numel(communicator().world_size());
      add_state(size * communicator().rank(), at::zeros({size}, context_.compute()));
    }
    gradients_ = std::make_unique<ReducedGradients>(
        context_.units, communicator(),
        ReducedGradients::Options{.keep = Reduction::kRange,
                                  .accumulated = context_.gradient(),
                                  .open_units = 1 + context_.resident_units});
  }

  void prefetch(size_t unit) override {
    if (context_.prefetch) begin_gather(unit);
  }

  at::Tensor gather(size_t unit) override {
    begin_gather(unit);
    if (pending_[unit]) pending_[unit]->wait();
    pending_[unit].reset();
    return buffers_.take(unit);
  }

  void release(size_t unit) override { buffers_.give_back(unit); }
  void after_update() override {}
  bool replicated() const override { return false; }
  int64_t buffer_bytes() const override { return buffers_.nbytes(); }

  int64_t parameter_bytes() const override {
    int64_t sum = 0;
    for (const auto& range : ranges_) sum += static_cast<int64_t>(range.nbytes());
    return sum;
  }

 private:
  // A buffer that was given back is written at once: on a device the collective comes behind the
  // computation that reads it, which is in the stream already; on the CPU that is over.
  void begin_gather(size_t unit) {
    if (buffers_.holds(unit)) return;
    pending_[unit] =
        communicator().all_gather(buffers_.take(unit), ranges_[unit], context_.units[unit].name());
  }

  UnitBuffers buffers_;
  std::vector<PendingPtr> pending_;
};

const bool registered = StrategyRegistry::instance().add(
    "full_shard",
    [](const StrategyContext& context) { return std::make_unique<FullShard>(context); });

}  // namespace
}  // namespace fastsft
