#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace fastsft {

// The selection of a file's records by the file's weight. A weight of 0.25 takes a quarter of the
// records; 2.5 takes each record twice and half of them a third time. The selection depends on the
// record's number alone and is spread evenly over the file.
class Share {
 public:
  explicit Share(double weight = 1.0) {
    require(weight > 0 && weight <= 1000,
            "the weight of a data file must lie above 0 and be at most ", "1000, got ", weight);
    const double whole = std::floor(weight);
    whole_ = static_cast<int64_t>(whole);
    part_ = static_cast<uint64_t>((weight - whole) * 0x1p64);
  }

  // Returns how often record `number` is taken.
  int64_t copies(int64_t number) const {
    // Multiples of the golden ratio are spread evenly: the count in any stretch of a file is off by
    // a few records at most, and no period in the data can coincide with a period in the selection.
    const uint64_t point = static_cast<uint64_t>(number + 1) * 0x9E3779B97F4A7C15ull;
    return whole_ + (point < part_ ? 1 : 0);
  }

 private:
  int64_t whole_;
  uint64_t part_;  // the weight's fraction in units of 2^-64
};

}  // namespace fastsft
