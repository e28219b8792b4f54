#pragma once

#include <cstdint>

namespace fastsft {

// The CRC-32C of two byte strings in a row, from that of each: `second` is that of the later one,
// which has `second_size` bytes.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace fastsft
