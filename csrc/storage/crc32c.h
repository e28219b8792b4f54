#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastsft {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of everything before, which `previous`
// is of (0 at the start), followed by `bytes`. Check value: "123456789" -> 0xE3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

// The same without the CPU's instruction, for machines that lack it and for the test of both.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous = 0);

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
