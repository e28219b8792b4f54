#include "shard/gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "ops/gradient/gradient.h"

namespace fastsft {
namespace {

int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

int parts_of(Reduction keep, const Communicator& communicator) {
  return keep == Reduction::kRange ? communicator.world_size() : 1;
}

}  // namespace

ReducedGradients::ReducedGradients(const std::vector<ParamUnit>& units, const Sharding& ranks,
                                   const Options& options)
    : units_(units),
      ranks_(ranks),
      keep_(options.keep),
      blocking_(options.blocking),
      in_products_(options.in_products && options.keep == Reduction::kWhole),
      buffers_(units, buffer_sizes(), options.open_units + 1, options.accumulated.dtype(at::kFloat),
               trace::Track::kGradients),
      whole_(units.size()),
      filled_(units.size(), false) {
  int64_t largest = 0;
  for (const auto& unit : units) {
    const int64_t size = unit.shard_numel(parts_of(keep_, ranks.shards));
    local_.push_back(at::empty({size}, options.accumulated));
    // Nothing writes the gaps between the linears, so zero them once.
    if (in_products_) local_.back().narrow(0, 0, unit.linear_end()).zero_();
    largest = std::max(largest, size);
  }
  const at::TensorOptions wide = options.accumulated.dtype(at::kFloat);
  const bool narrow = options.accumulated.dtype() != at::kFloat;
  // A whole sum stays in its buffer and needs no `range_`.
  if (keep_ == Reduction::kRange) range_ = at::empty({largest}, wide);
  if (narrow && ranks.replicas.world_size() > 1) replica_sum_ = at::empty({largest}, wide);
}

std::vector<int64_t> ReducedGradients::buffer_sizes() const {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < units_.size(); ++i)
    sizes.push_back(units_[i].padded_numel(parts_of(keep_, ranks_.shards)) - direct_end(i));
  return sizes;
}

UnitGradient& ReducedGradients::whole(size_t unit) {
  if (pending_ && pending_unit_ == unit) finish_pending();  // from the micro-batch before
  if (buffers_.is_acquired(unit)) return whole_[unit];
  const at::Tensor flat = buffers_.acquire(unit);
  whole_[unit] = in_products_ ? UnitGradient(units_[unit], flat, local_[unit], filled_[unit])
                              : UnitGradient(units_[unit], flat);
  return whole_[unit];
}

at::Tensor ReducedGradients::reduced(size_t unit) const {
  if (keep_ == Reduction::kWhole) return whole_[unit].flat();
  return range_.narrow(0, 0, local_[unit].numel());
}

void ReducedGradients::reduce(size_t unit) {
  finish_pending();
  const std::string& name = units_[unit].name();
  const at::Tensor& flat = whole_[unit].flat();
  if (direct_end(unit) > 0) observe(local_[unit].narrow(0, 0, direct_end(unit)));
  observe(flat);
  pending_ = keep_ == Reduction::kWhole
                 ? ranks_.shards.all_reduce_sum(flat, name)
                 : ranks_.shards.reduce_scatter_sum(reduced(unit), flat, name);
  pending_unit_ = unit;
  pending_last_ = last_;
  if (blocking_) finish();
}

void ReducedGradients::finish_pending() {
  if (!pending_) return;
  pending_->wait();
  pending_.reset();
  const at::Tensor sum = reduced(pending_unit_);
  const at::Tensor local = local_[pending_unit_].slice(0, direct_end(pending_unit_));
  const bool filled = filled_[pending_unit_];
  if (pending_last_ && ranks_.replicas.world_size() > 1) {
    if (filled) sum.add_(local);
    begin_replicas(pending_unit_, sum);
  } else if (filled) {
    accumulate(local, sum);
  } else {
    local.copy_(sum);
  }
  filled_[pending_unit_] = true;
  // Later writes to the buffer or the range are enqueued after this addition.
  buffers_.release(pending_unit_);
}

// Called for the last micro-batch only: after this sum `local_` includes the other replicas, so a
// later micro-batch could not add to it.
void ReducedGradients::begin_replicas(size_t unit, const at::Tensor& sum) {
  finish_replicas();
  const at::Tensor& local = local_[unit];
  const at::Tensor target =
      replica_sum_.defined() ? replica_sum_.narrow(0, 0, local.numel()) : local;
  target.copy_(sum);
  replica_unit_ = unit;
  replica_pending_ = ranks_.replicas.all_reduce_sum(target, "copies of " + units_[unit].name());
}

void ReducedGradients::finish_replicas() {
  if (!replica_pending_) return;
  replica_pending_->wait();
  replica_pending_.reset();
  if (!replica_sum_.defined()) return;
  const at::Tensor& local = local_[replica_unit_];
  local.copy_(replica_sum_.narrow(0, 0, local.numel()));
}

void ReducedGradients::finish() {
  finish_pending();
  finish_replicas();
}

void ReducedGradients::clear() { std::fill(filled_.begin(), filled_.end(), false); }

int64_t ReducedGradients::nbytes() const {
  int64_t ranges = 0;
  for (const auto& range : {range_, replica_sum_}) {
    if (range.defined()) ranges += static_cast<int64_t>(range.nbytes());
  }
  return total_bytes(local_) + buffers_.nbytes() + ranges;
}

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
  // The update is the first to need the sums of a single copy. If the backend copies what it sums,
  // one reduction runs at a time, as in the memory plan.
  const at::Device device = options_.wide.device();
  if (device.is_cpu() || ranks_.shards.copies_to_host(device) || ranks_.replicas.world_size() > 1) {
    finish_pending();
  }
  const std::string& name = units_[unit].name();
  const at::Tensor& flat = whole_[unit].flat();
  observe(flat);
  pending_.emplace_back(unit, options_.keep == Reduction::kWhole
                                  ? ranks_.shards.all_reduce_sum(flat, name)
                                  : ranks_.shards.reduce_scatter_sum(local(unit), flat, name));
  if (options_.blocking) finish();
}

void SummedGradients::finish_pending() {
  for (const auto& [unit, pending] : std::exchange(pending_, {})) {
    pending->wait();
    if (ranks_.replicas.world_size() == 1) continue;
    finish_replicas();
    replica_pending_ =
        ranks_.replicas.all_reduce_sum(local(unit), "copies of " + units_[unit].name());
  }
}

void SummedGradients::finish_replicas() {
  if (replica_pending_) replica_pending_->wait();
  replica_pending_.reset();
}

void SummedGradients::finish() {
  finish_pending();
  finish_replicas();
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
