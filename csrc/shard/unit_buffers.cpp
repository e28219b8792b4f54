#include "shard/unit_buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace fastsft {

UnitBuffers::UnitBuffers(const std::vector<ParamUnit>& units, int world_size, size_t count,
                         const at::TensorOptions& options, trace::Lane lane)
    : units_(units), world_size_(world_size), owners_(count, kFree), lane_(lane), spans_(count, 0) {
  int64_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.padded_numel(world_size));
  for (size_t i = 0; i < count; ++i) {
    buffers_.push_back(at::empty({largest}, options));
  }
}

bool UnitBuffers::holds(size_t unit) const {
  return std::find(owners_.begin(), owners_.end(), unit) != owners_.end();
}

at::Tensor UnitBuffers::take(size_t unit) {
  auto owner = std::find(owners_.begin(), owners_.end(), unit);
  if (owner == owners_.end()) owner = std::find(owners_.begin(), owners_.end(), kFree);
  FASTSFT_ASSERT(owner != owners_.end(), "no free buffer for unit ", units_[unit].name());
  const auto index = static_cast<size_t>(owner - owners_.begin());
  if (*owner == kFree && trace::Recorder::on()) {
    spans_[index] = trace::Recorder::instance().begin(lane_, units_[unit].name());
  }
  *owner = unit;
  return buffers_[index].narrow(0, 0, units_[unit].padded_numel(world_size_));
}

void UnitBuffers::give_back(size_t unit) {
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
