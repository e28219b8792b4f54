#include "shard/unit_gradient.h"

namespace fastsft {

UnitGradient::UnitGradient(const ParamUnit& unit, at::Tensor flat) : flat_(std::move(flat)) {
  int64_t end = 0;
  for (const auto& slot : unit.slots()) {
    if (slot.offset > end) flat_.narrow(0, end, slot.offset - end).zero_();
    end = slot.offset + slot.numel();
  }
  if (flat_.numel() > end) flat_.narrow(0, end, flat_.numel() - end).zero_();
}

}  // namespace fastsft
