#include "shard/full_shard.h"

#include <ATen/ops/zeros.h>

namespace fastsft {

FullShard::FullShard(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks),
      buffers_(context_.units, shards().world_size(), 2 + context.resident_units, context.compute(),
               trace::Lane::kParameters),
      pending_(context.units.size()) {
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(shards().world_size());
    add_state(size * shards().rank(), at::zeros({size}, context_.compute()));
  }
  reduce_gradients(Reduction::kRange);
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

namespace {

const bool kFullShardRegistered =
    StrategyRegistry::instance().add("full_shard", [](const StrategyContext& context) {
      return std::make_unique<FullShard>(context, context.groups.over_all());
    });

}  // namespace
}  // namespace fastsft
