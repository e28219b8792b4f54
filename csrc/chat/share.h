#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace fastsft {

// Which records of a file are taken when its weight is not 1: a weight of 0.25 takes a quarter of
// them, 2.5 takes each twice and half of them a third time. The choice depends on the record's
// number alone and is spread evenly over the file.
class Share {
 public:
  explicit Share(double weight = 1.0) {
    require(weight > 0 && weight <= 1000,
            "the weight of a data file must lie above 0 and be at most ", "1000, got ", weight);
    const double whole = std::floor(weight);
    whole_ = static_cast<int64_t>(whole);
    part_ = static_cast<uint64_t>((weight - whole) * 0x1p64);
  }

  // How often record `number` of its file comes.
  int64_t copies(int64_t number) const {
    // Multiples of the golden ratio: no stretch of a file gets more than its share by more than a
    // few records, and no period of the data can meet one of the choice.
    const uint64_t point = static_cast<uint64_t>(number + 1) * 0x9E3779B97F4A7C15ull;
    return whole_ + (point < part_ ? 1 : 0);
  }

 private:
  int64_t whole_;
  uint64_t part_;  // of 2^64
};

}  // namespace fastsft
