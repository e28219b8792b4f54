#include "model/model.h"

namespace fastsft {

int64_t Model::num_parameters() const {
  int64_t sum = 0;
  for (const ParamUnit& unit : units()) {
    for (const auto& slot : unit.slots()) sum += slot.numel();
  }
  return sum;
}

}  // namespace fastsft
