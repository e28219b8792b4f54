#pragma once

#include <cstdint>

namespace fastsft {

// The checksum of two stretches of bytes after each other from their own.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size);

// The same for many second stretches of one size.
class Crc32cCombiner {
 public:
  explicit Crc32cCombiner(uint64_t second_size);
  uint32_t operator()(uint32_t first, uint32_t second) const;

 private:
  uint32_t shift_;
};

}  // namespace fastsft
