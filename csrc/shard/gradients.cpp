#include "shard/gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>

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

ReducedGradients::ReducedGradients(const std::vector<ParamUnit>& units, Communicator& communicator,
                                   const Options& options)
    : units_(units),
      communicator_(communicator),
      keep_(options.keep),
      buffers_(units, parts_of(options.keep, communicator), options.open_units + 1,
               options.accumulated.dtype(at::kFloat), trace::Lane::kGradients),
      whole_(units.size()),
      filled_(units.size(), false) {
  int64_t largest = 0;
  for (const auto& unit : units) {
    const int64_t size = unit.shard_numel(parts_of(keep_, communicator));
    local_.push_back(at::empty({size}, options.accumulated));
    largest = std::max(largest, size);
  }
  if (keep_ == Reduction::kWhole) return;  // then the sum stays in the buffer
  range_ = at::empty({largest}, options.accumulated.dtype(at::kFloat));
}

UnitGradient& ReducedGradients::whole(size_t unit) {
  if (pending_ && pending_unit_ == unit) finish_pending();  // still that of the last micro-batch
  if (!buffers_.holds(unit)) whole_[unit] = UnitGradient(units_[unit], buffers_.take(unit));
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
  pending_ = keep_ == Reduction::kWhole
                 ? communicator_.all_reduce_sum(flat, name)
                 : communicator_.reduce_scatter_sum(reduced(unit), flat, name);
  pending_unit_ = unit;
}

void ReducedGradients::finish_pending() {
  if (!pending_) return;
  pending_->wait();
  pending_.reset();
  const at::Tensor sum = reduced(pending_unit_);
  if (filled_[pending_unit_])
    local_[pending_unit_].add_(sum);
  else
    local_[pending_unit_].copy_(sum);
  filled_[pending_unit_] = true;
  // What writes the buffer or the range next is enqueued behind this addition.
  buffers_.give_back(pending_unit_);
}

void ReducedGradients::clear() { std::fill(filled_.begin(), filled_.end(), false); }

int64_t ReducedGradients::nbytes() const {
  const auto range = range_.defined() ? static_cast<int64_t>(range_.nbytes()) : 0;
  return total_bytes(local_) + buffers_.nbytes() + range;
}

ReplicatedGradients::ReplicatedGradients(const std::vector<ParamUnit>& units,
                                         Communicator& communicator,
                                         const at::TensorOptions& options)
    : units_(units), communicator_(communicator) {
  for (const auto& unit : units) {
    whole_.emplace_back(unit, at::empty({unit.padded_numel(1)}, options));
  }
}

void ReplicatedGradients::reduce(size_t unit) {
  if (!last_ || communicator_.world_size() == 1) return;
  finish();
  pending_ = communicator_.all_reduce_sum(whole_[unit].flat(), units_[unit].name());
}

void ReplicatedGradients::finish() {
  if (pending_) pending_->wait();
  pending_.reset();
}

void ReplicatedGradients::clear() {
  for (auto& gradient : whole_) gradient.clear();
}

int64_t ReplicatedGradients::nbytes() const {
  int64_t sum = 0;
  for (const auto& gradient : whole_) sum += static_cast<int64_t>(gradient.flat().nbytes());
  return sum;
}

}  // namespace fastsft
