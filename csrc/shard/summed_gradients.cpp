#include "shard/summed_gradients.h"

#include <ATen/ops/empty.h>

namespace fastsft {

SummedGradients::SummedGradients(const std::vector<ParamUnit>& units, const Sharding& ranks,
                                 const Options& options)
    : units_(units), ranks_(ranks), options_(options) {
  const int parts = options.keep == Reduction::kRange ? ranks.shards.world_size() : 1;
  for (const auto& unit : units) {
    whole_.emplace_back(unit, at::empty({unit.padded_numel(parts)}, options.wide));
  }
}

at::Tensor SummedGradients::local(size_t unit) const {
  const at::Tensor& flat = whole_[unit].flat();
  if (options_.keep == Reduction::kWhole) return flat;
  const int64_t size = flat.numel() / ranks_.shards.world_size();
  return flat.narrow(0, size * ranks_.shards.rank(), size);
}

void SummedGradients::reduce(size_t unit) {
  if (!last_) return;
  finish_pending();
  const std::string& name = units_[unit].name();
  const at::Tensor& flat = whole_[unit].flat();
  observe(flat);
  pending_ = options_.keep == Reduction::kWhole
                 ? ranks_.shards.all_reduce_sum(flat, name)
                 : ranks_.shards.reduce_scatter_sum(local(unit), flat, name);
  pending_unit_ = unit;
  if (options_.blocking) finish();
}

void SummedGradients::finish_pending() {
  if (!pending_) return;
  pending_->wait();
  pending_.reset();
  if (ranks_.copies.world_size() == 1) return;
  finish_copies();
  copies_pending_ = ranks_.copies.all_reduce_sum(local(pending_unit_),
                                                 "copies of " + units_[pending_unit_].name());
}

void SummedGradients::finish_copies() {
  if (copies_pending_) copies_pending_->wait();
  copies_pending_.reset();
}

void SummedGradients::finish() {
  finish_pending();
  finish_copies();
}

void SummedGradients::clear() {
  for (auto& gradient : whole_) gradient.clear();
}

int64_t SummedGradients::nbytes() const {
  int64_t sum = 0;
  for (const auto& gradient : whole_) sum += static_cast<int64_t>(gradient.flat().nbytes());
  return sum;
}

}  // namespace fastsft
