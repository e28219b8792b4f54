#include <ATen/ops/zeros.h>

#include "shard/strategy.h"

namespace fastsft {
namespace {

// Every rank holds all parameters, gradients and optimizer state.
class NoShard : public Strategy {
 public:
  explicit NoShard(const StrategyContext& context) : Strategy(context, context.groups.over_all()) {
    for (const auto& unit : context_.units) {
      add_state(0, at::zeros({unit.padded_numel(1)}, context_.compute()));
    }
    make_gradients(Reduction::kWhole);
  }

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override { return ranges_[unit]; }
  void release(size_t) override {}
  void after_update(size_t) override {}
  bool replicated() const override { return true; }
  int64_t buffer_bytes() const override { return 0; }

  int64_t parameter_bytes() const override {
    int64_t sum = 0;
    for (const auto& range : ranges_) sum += static_cast<int64_t>(range.nbytes());
    return sum;
  }
};

// Everything on every rank. float32 gradients are reduced in place; bfloat16 ones after every
// micro-batch, through whole units in float32; of a rank that is alone not the linears.
StateBytes plan_no_shard(const StateDescription& d) {
  StateDescription alone = d;
  alone.in_products = d.world_size == 1 && d.options.gradients_in_products();
  alone.world_size = 1;  // units are padded for one rank
  const int64_t size = alone.total();
  StateBytes bytes{
      .parameters = size * d.options.itemsize(),
      .gradients = d.options.grad_itemsize() < 4 ? alone.reduced_gradients() : 4 * size,
      .clones_between = alone.widened_sums()};
  plan_optimizer(alone, bytes);
  plan_frozen_whole(alone, bytes);
  return bytes;
}

const bool kNoShardRegistered = StrategyRegistry::instance().add(
    "no_shard",
    {.make = [](const StrategyContext& context) { return std::make_unique<NoShard>(context); },
     .plan = plan_no_shard});

}  // namespace
}  // namespace fastsft
