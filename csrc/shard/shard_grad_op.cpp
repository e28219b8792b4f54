#include <ATen/ops/zeros.h>

#include "shard/strategy.h"

namespace fastsft {
namespace {

// Parameters whole on every rank between steps; gradients and optimizer state by ranges. One
// all-gather a unit after the update.
class ShardGradOp : public Strategy {
 public:
  explicit ShardGradOp(const StrategyContext& context) : Strategy(context) {
    const int world_size = communicator().world_size();
    for (const auto& unit : context_.units) {
      const int64_t size = unit.shard_numel(world_size), begin = size * communicator().rank();
      whole_.push_back(at::zeros({size * world_size}, context_.compute()));
      add_state(begin, whole_.back().narrow(0, begin, size));
    }
    gradients_ = std::make_unique<ReducedGradients>(
        context_.units, communicator(),
        ReducedGradients::Options{.keep = Reduction::kRange,
                                  .accumulated = context_.gradient(),
                                  .open_units = 1 + context_.resident_units});
  }

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override { return whole_[unit]; }
  void release(size_t) override {}
  bool replicated() const override { return false; }
  int64_t buffer_bytes() const override { return 0; }

  void after_update() override {
    for (size_t unit = 0; unit < num_units(); ++unit) {
      communicator().all_gather(whole_[unit], ranges_[unit], context_.units[unit].name())->wait();
    }
  }

  int64_t parameter_bytes() const override {
    int64_t sum = 0;
    for (const auto& whole : whole_) sum += static_cast<int64_t>(whole.nbytes());
    return sum;
  }

 private:
  std::vector<at::Tensor> whole_;
};

const bool registered = StrategyRegistry::instance().add(
    "shard_grad_op",
    [](const StrategyContext& context) { return std::make_unique<ShardGradOp>(context); });

}  // namespace
}  // namespace fastsft
