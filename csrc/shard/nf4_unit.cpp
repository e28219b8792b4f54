#include "shard/nf4_unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "ops/nf4/nf4.h"

namespace fastsft {

Nf4Sizes::Nf4Sizes(const ParamUnit& unit, int ranks) {
  constexpr int64_t kStep = kAlignment / kNf4Block;
  const int64_t steps = unit.linear_end() / kAlignment;
  range_blocks = (steps + ranks - 1) / ranks * kStep;
  blocks = range_blocks * ranks;
  for (const auto& slot : unit.slots()) {
    if (slot.linear) scales += nf4_scale_numel(slot.numel());
  }
  rest = std::max<int64_t>(unit.numel() - unit.linear_end(), 0);
}

int64_t Nf4Sizes::whole_bytes() const { return blocks * kNf4BlockBytes; }

int64_t Nf4Sizes::held_bytes(int64_t itemsize) const {
  return range_blocks * kNf4BlockBytes + scales * static_cast<int64_t>(sizeof(float)) +
         rest * itemsize;
}

Nf4Unit::Nf4Unit(const ParamUnit& unit, const at::TensorOptions& compute, const at::Tensor& levels,
                 int ranks, int rank)
    : unit_(unit), compute_(compute), levels_(levels) {
  const Nf4Sizes sizes(unit, ranks);
  first_block_ = sizes.range_blocks * rank;
  range_ = at::zeros({sizes.range_blocks, kNf4BlockBytes}, compute.dtype(at::kByte));
  rest_ = at::zeros({sizes.rest}, compute);
  for (const auto& slot : unit.slots()) {
    FASTSFT_ASSERT(slot.linear == (slot.offset < unit.linear_end()), slot.name);
    if (!slot.linear) continue;
    require(slot.numel() % kNf4Block == 0, "frozen_dtype is \"nf4\": ", slot.name, " has ",
            slot.numel(), " elements, expected a multiple of ", kNf4Block);
    linears_.push_back(
        {&slot, at::zeros({nf4_scale_numel(slot.numel())}, compute.dtype(at::kFloat))});
  }
}

void Nf4Unit::store(int64_t offset, const at::Tensor& values) {
  const auto found = std::find_if(linears_.begin(), linears_.end(), [&](const Linear& linear) {
    return linear.slot->offset == offset;
  });
  FASTSFT_ASSERT(found != linears_.end(), unit_.name(), " has no linear at ", offset);
  const int64_t blocks = found->slot->numel() / kNf4Block, begin = offset / kNf4Block;
  const at::Tensor packed = at::empty({blocks, kNf4BlockBytes}, range_.options());
  nf4_quantize(values, packed, found->scales);
  const int64_t first = std::max(begin, first_block_);
  const int64_t end = std::min(begin + blocks, first_block_ + range_.size(0));
  if (first >= end) return;
  range_.slice(0, first - first_block_, end - first_block_)
      .copy_(packed.slice(0, first - begin, end - begin));
}

void Nf4Unit::unpack(const at::Tensor& whole_bytes, const at::Tensor& flat) const {
  const at::Tensor blocks = whole_bytes.view({-1, kNf4BlockBytes});
  int64_t end = 0;  // end of the written elements; gaps are set to zero, as in all units
  const auto skip_to = [&](int64_t begin) {
    if (begin > end) flat.slice(0, end, begin).zero_();
  };
  for (const auto& [slot, scales] : linears_) {
    skip_to(slot->offset);
    end = slot->offset + slot->numel();
    nf4_dequantize(blocks.slice(0, slot->offset / kNf4Block, end / kNf4Block), scales, levels_,
                   flat.slice(0, slot->offset, end));
  }
  skip_to(unit_.linear_end());
  end = unit_.linear_end() + rest_.numel();
  flat.slice(0, unit_.linear_end(), end).copy_(rest_);
  skip_to(flat.numel());
}

int64_t Nf4Unit::nbytes() const {
  auto sum = static_cast<int64_t>(range_.nbytes() + rest_.nbytes());
  for (const auto& linear : linears_) sum += static_cast<int64_t>(linear.scales.nbytes());
  return sum;
}

}  // namespace fastsft
