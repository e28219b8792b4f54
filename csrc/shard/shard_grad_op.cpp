#include "shard/shard_grad_op.h"

#include <ATen/ops/zeros.h>

namespace fastsft {

ShardGradOp::ShardGradOp(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks) {
  const int count = shards().world_size();
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(count), begin = size * shards().rank();
    whole_.push_back(at::zeros({size * count}, context_.compute()));
    add_state(begin, whole_.back().narrow(0, begin, size));
  }
  reduce_gradients(Reduction::kRange);
}

void ShardGradOp::after_update() {
  for (size_t unit = 0; unit < num_units(); ++unit) {
    shards().all_gather(whole_[unit], ranges_[unit], context_.units[unit].name())->wait();
  }
}

int64_t ShardGradOp::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& whole : whole_) sum += static_cast<int64_t>(whole.nbytes());
  return sum;
}

namespace {

const bool kShardGradOpRegistered =
    StrategyRegistry::instance().add("shard_grad_op", [](const StrategyContext& context) {
      return std::make_unique<ShardGradOp>(context, context.groups.over_all());
    });

}  // namespace
}  // namespace fastsft
