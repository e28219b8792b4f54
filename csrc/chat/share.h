#pragma once

#include <cstdint>

namespace fastsft {

// Which records of a file are taken when its weight is not 1: a weight of 0.25 takes a quarter of
// them, 2.5 takes each twice and half of them a third time. The choice depends on the record's
// number alone and is spread evenly over the file.
class Share {
 public:
  explicit Share(double weight = 1.0);

  // How often record `number` of its file comes.
  int64_t copies(int64_t number) const;

 private:
  int64_t whole_;
  uint64_t part_;  // of 2^64
};

}  // namespace fastsft
