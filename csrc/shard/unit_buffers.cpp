#include "shard/unit_buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace fastsft {

namespace {

std::vector<int64_t> padded_sizes(const std::vector<ParamUnit>& units, int world_size) {
  std::vector<int64_t> sizes;
  for (const auto& unit : units) sizes.push_back(unit.padded_numel(world_size));
  return sizes;
}

}  // namespace

UnitBuffers::UnitBuffers(const std::vector<ParamUnit>& units, int world_size, size_t count,
                         const at::TensorOptions& options, trace::Track track)
    : UnitBuffers(units, padded_sizes(units, world_size), count, options, track) {}

UnitBuffers::UnitBuffers(const std::vector<ParamUnit>& units, std::vector<int64_t> sizes,
                         size_t count, const at::TensorOptions& options, trace::Track track)
    : units_(units),
      sizes_(std::move(sizes)),
      owners_(count, kFree),
      track_(track),
      spans_(count, 0) {
  int64_t largest = 0;
  for (const int64_t size : sizes_) largest = std::max(largest, size);
  for (size_t i = 0; i < count; ++i) {
    buffers_.push_back(at::empty({largest}, options));
  }
}

bool UnitBuffers::is_acquired(size_t unit) const {
  return std::find(owners_.begin(), owners_.end(), unit) != owners_.end();
}

at::Tensor UnitBuffers::acquire(size_t unit) {
  auto owner = std::find(owners_.begin(), owners_.end(), unit);
  if (owner == owners_.end()) owner = std::find(owners_.begin(), owners_.end(), kFree);
  FASTSFT_ASSERT(owner != owners_.end(), "no free buffer for unit ", units_[unit].name());
  const auto index = static_cast<size_t>(owner - owners_.begin());
  if (*owner == kFree && trace::Recorder::on()) {
    spans_[index] = trace::Recorder::instance().begin(track_, units_[unit].name());
  }
  *owner = unit;
  return buffers_[index].narrow(0, 0, sizes_[unit]);
}

void UnitBuffers::release(size_t unit) {
  const auto owner = std::find(owners_.begin(), owners_.end(), unit);
  if (owner == owners_.end()) return;
  *owner = kFree;
  const auto index = static_cast<size_t>(owner - owners_.begin());
  trace::Recorder::instance().end(std::exchange(spans_[index], 0));
}

int64_t UnitBuffers::nbytes() const {
  int64_t sum = 0;
  for (const auto& buffer : buffers_) sum += static_cast<int64_t>(buffer.nbytes());
  return sum;
}

}  // namespace fastsft
