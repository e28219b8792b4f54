#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace fastsft {

// Calls work(block) for one block of `bytes` after the other, small enough that what is read twice
// is in the core's cache the second time.
template <typename Work>
void for_blocks(std::span<const std::byte> bytes, const Work& work) {
  constexpr size_t kBlock = 256 << 10;
  while (!bytes.empty()) {
    const size_t size = std::min(kBlock, bytes.size());
    work(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

}  // namespace fastsft
