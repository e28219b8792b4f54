#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastsft {

// Returns the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of a stream of bytes that ends
// with `bytes`. `previous`: the checksum of the bytes before `bytes`; 0 at the start. Check value:
// "123456789" -> 0xE3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

// Computes the same checksum without the SSE4.2 instruction, for processors that lack it. Tests
// compare both functions.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous = 0);

// Returns the checksum of two concatenated byte ranges. `first`, `second`: their checksums;
// `second_size`: the second range's length in bytes.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size);

// Combines checksums like `crc32c_combine`, faster if many second ranges have the same size.
class Crc32cCombiner {
 public:
  explicit Crc32cCombiner(uint64_t second_size);
  uint32_t operator()(uint32_t first, uint32_t second) const;

 private:
  uint32_t shift_;
};

}  // namespace fastsft
