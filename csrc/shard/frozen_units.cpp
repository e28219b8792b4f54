#include "shard/frozen_units.h"

#include <ATen/ops/zeros.h>

namespace fastsft {

FrozenUnits::FrozenUnits(const std::vector<ParamUnit>& units, const Options& options)
    : units_(units), options_(options), pending_(units.size()) {
  Communicator* shards = options.shards;
  for (const auto& unit : units) {
    const int64_t size = shards ? unit.shard_numel(shards->world_size()) : unit.padded_numel(1);
    const int64_t begin = shards ? size * shards->rank() : 0;
    states_.push_back({.unit = &unit,
                       .begin = begin,
                       .end = begin + size,
                       .master = at::zeros({size}, options.compute)});
  }
  if (shards && !units.empty()) {
    buffers_.emplace(units_, shards->world_size(), 2 + options.resident_units, options.compute,
                     trace::Lane::kParameters);
  }
}

void FrozenUnits::prefetch(size_t unit) {
  if (buffers_ && options_.prefetch) begin_gather(unit);
}

at::Tensor FrozenUnits::gather(size_t unit) {
  if (!buffers_) return states_[unit].master;
  begin_gather(unit);
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
  return buffers_->take(unit);
}

void FrozenUnits::release(size_t unit) {
  if (buffers_) buffers_->give_back(unit);
}

int64_t FrozenUnits::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) sum += static_cast<int64_t>(state.master.nbytes());
  return sum;
}

void FrozenUnits::begin_gather(size_t unit) {
  if (buffers_->holds(unit)) return;
  pending_[unit] =
      options_.shards->all_gather(buffers_->take(unit), states_[unit].master, units_[unit].name());
}

}  // namespace fastsft
