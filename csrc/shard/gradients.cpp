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

}  // namespace

ShardedGradients::ShardedGradients(const std::vector<ParamUnit>& units, Communicator& communicator,
                                   const at::TensorOptions& options, size_t open_units)
    : units_(units),
      communicator_(communicator),
      buffers_(units, communicator.world_size(), open_units + 1, options),
      whole_(units.size()),
      filled_(units.size(), false) {
  int64_t largest = 0;
  for (const auto& unit : units) {
    const int64_t size = unit.shard_numel(communicator.world_size());
    local_.push_back(at::empty({size}, options));
    largest = std::max(largest, size);
  }
  reduced_ = at::empty({largest}, options);
}

UnitGradient& ShardedGradients::whole(size_t unit) {
  if (pending_ && pending_unit_ == unit) finish_pending();  // still that of the last micro-batch
  if (!buffers_.holds(unit)) whole_[unit] = UnitGradient(units_[unit], buffers_.take(unit));
  return whole_[unit];
}

void ShardedGradients::reduce(size_t unit) {
  finish_pending();
  const at::Tensor range = reduced_.narrow(0, 0, local_[unit].numel());
  pending_ = communicator_.reduce_scatter_sum(range, whole_[unit].flat());
  pending_unit_ = unit;
}

void ShardedGradients::finish_pending() {
  if (!pending_) return;
  pending_->wait();
  pending_.reset();
  buffers_.give_back(pending_unit_);
  const at::Tensor range = reduced_.narrow(0, 0, local_[pending_unit_].numel());
  if (filled_[pending_unit_])
    local_[pending_unit_].add_(range);
  else
    local_[pending_unit_].copy_(range);
  filled_[pending_unit_] = true;
}

void ShardedGradients::clear() { std::fill(filled_.begin(), filled_.end(), false); }

int64_t ShardedGradients::nbytes() const {
  return total_bytes(local_) + buffers_.nbytes() + static_cast<int64_t>(reduced_.nbytes());
}

ReplicatedGradients::ReplicatedGradients(const std::vector<ParamUnit>& units,
                                         Communicator& communicator,
                                         const at::TensorOptions& options)
    : communicator_(communicator) {
  for (const auto& unit : units) {
    whole_.emplace_back(unit, at::empty({unit.padded_numel(1)}, options));
  }
}

void ReplicatedGradients::reduce(size_t unit) {
  if (!last_ || communicator_.world_size() == 1) return;
  finish();
  pending_ = communicator_.all_reduce_sum(whole_[unit].flat());
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
