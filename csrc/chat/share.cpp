#include "chat/share.h"

#include <cmath>

#include "core/error.h"

namespace fastsft {

Share::Share(double weight) {
  require(weight > 0 && weight <= 1000,
          "the weight of a data file must lie above 0 and be at most ", "1000, got ", weight);
  const double whole = std::floor(weight);
  whole_ = static_cast<int64_t>(whole);
  part_ = static_cast<uint64_t>((weight - whole) * 0x1p64);
}

int64_t Share::copies(int64_t number) const {
  // Multiples of the golden ratio: no stretch of a file gets more than its share by more than a few
  // records, and no period of the data can meet one of the choice.
  const uint64_t point = static_cast<uint64_t>(number + 1) * 0x9E3779B97F4A7C15ull;
  return whole_ + (point < part_ ? 1 : 0);
}

}  // namespace fastsft
