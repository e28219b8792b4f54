#pragma once

#include <cstddef>
#include <cstdint>

namespace fastsft {

// One bit a byte of a block of 64: bit i is of byte i.
struct ByteMasks {
  uint64_t spaces = 0;  // 0x20
  uint64_t leads = 0;   // 0xE2, with which U+2581 begins
};

inline constexpr size_t kBlockSize = 64;

// Masks of `count` blocks at `bytes`, with the widest instructions that the machine has.
void find_bytes(const char* bytes, size_t count, ByteMasks* masks);

// The same by each way that this machine can go; the first needs nothing special. For tests.
size_t num_mask_finders();
void find_bytes_by(size_t finder, const char* bytes, size_t count, ByteMasks* masks);

}  // namespace fastsft
