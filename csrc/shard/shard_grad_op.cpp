#include "shard/shard_grad_op.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fastsft {

ShardGradOp::ShardGradOp(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks), pending_(context.units.size()) {
  const int count = shards().world_size();
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(count), begin = size * shards().rank();
    whole_.push_back(at::zeros({size * count}, context_.compute()));
    add_state(begin, whole_.back().narrow(0, begin, size));
  }
  make_gradients(Reduction::kRange);
}

// gloo clones what it gathers: one unit at a time, as the plan has it.
void ShardGradOp::after_update(size_t unit) {
  if (device().is_cpu() && unit > 0) gather(unit - 1);
  pending_[unit] = shards().all_gather(whole_[unit], ranges_[unit], context_.units[unit].name());
  if (!context_.prefetch) gather(unit);
}

at::Tensor ShardGradOp::gather(size_t unit) {
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
  return whole_[unit];
}

void ShardGradOp::await_gathers() {
  for (size_t unit = 0; unit < num_units(); ++unit) gather(unit);
}

int64_t ShardGradOp::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& whole : whole_) sum += static_cast<int64_t>(whole.nbytes());
  return sum;
}

StateBytes plan_shard_grad_op(const StateDescription& d) {
  const int64_t clone = d.clones() ? 1 : 0;
  StateBytes bytes{
      .parameters = d.total() * d.options.itemsize(),
      .gradients = d.sharded_gradients(),
      .clones_in_blocks = clone * 4 * d.largest(d.first_block()),
      .clones_between = clone * std::max(4 * d.padded(0), d.options.itemsize() * d.largest(0))};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  plan_frozen_whole(d, bytes);
  return bytes;
}

namespace {

const bool kShardGradOpRegistered = StrategyRegistry::instance().add(
    "shard_grad_op", {.make = make_over_all<ShardGradOp>, .plan = plan_shard_grad_op});

}  // namespace
}  // namespace fastsft
