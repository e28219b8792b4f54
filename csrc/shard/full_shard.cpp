#include "shard/full_shard.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fastsft {

FullShard::FullShard(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks, Frozen::kByRanges),
      buffers_(context_.units, shards().world_size(), 2 + context.resident_units, context.compute(),
               trace::Lane::kParameters),
      pending_(context.units.size()) {
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(shards().world_size());
    add_state(size * shards().rank(), at::zeros({size}, context_.compute()));
  }
  make_gradients(Reduction::kRange);
}

void FullShard::prefetch(size_t unit) {
  if (context_.prefetch) begin_gather(unit);
}

at::Tensor FullShard::gather(size_t unit) {
  begin_gather(unit);
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
  return buffers_.take(unit);
}

int64_t FullShard::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& range : ranges_) sum += static_cast<int64_t>(range.nbytes());
  return sum;
}

// A buffer that was given back is written at once: on a device the collective comes after the
// computation that reads it, which is in the stream already; on the CPU that is over.
void FullShard::begin_gather(size_t unit) {
  if (buffers_.holds(unit)) return;
  pending_[unit] =
      shards().all_gather(buffers_.take(unit), ranges_[unit], context_.units[unit].name());
}

// A block's reduction runs next to the gather of the block after the next; that of the embedding
// next to the next micro-batch's gather.
StateBytes plan_full_shard(const StateDescription& d) {
  const int64_t range = d.total() / d.world_size, embedding = d.padded(0);
  const auto open = static_cast<int64_t>(2 + d.resident_units);
  const int64_t clone = d.clones() ? 1 : 0;
  const bool next_to_gather = d.accumulates && d.options.sync_each_batch;
  StateBytes bytes{
      .parameters = range * d.options.itemsize(),
      .gradients = d.sharded_gradients(),
      .buffers = d.options.itemsize() * open * d.largest(0),
      .clones_in_blocks = clone * (4 * d.largest(d.first_block()) +
                                   d.options.itemsize() * d.padded(d.first_block())),
      .clones_between = clone * embedding * (next_to_gather ? 4 + d.options.itemsize() : 4)};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  plan_frozen_ranges(d, bytes);
  return bytes;
}

namespace {

const bool kFullShardRegistered = StrategyRegistry::instance().add(
    "full_shard", {.make = make_over_all<FullShard>, .plan = plan_full_shard});

}  // namespace
}  // namespace fastsft
