#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastsft {

// A table from characters to numbers with two levels: pages with 256 characters, allocated when
// first needed.
class CharacterTable {
 public:
  static constexpr int32_t kMissing = -1;

  CharacterTable() : numbers_(kPage, kMissing) {}

  int32_t find(char32_t character) const {
    return numbers_[pages_[(character >> 8) % kPages] * kPage + (character & 0xFF)];
  }
  // Sets the number of `character`, which is at most U+10FFFF. Returns false, without overwriting,
  // if the character already has a number.
  bool add(char32_t character, int32_t number) {
    uint16_t& page = pages_[(character >> 8) % kPages];
    if (page == 0) {
      page = static_cast<uint16_t>(numbers_.size() / kPage);
      numbers_.resize(numbers_.size() + kPage, kMissing);
    }
    int32_t& held = numbers_[page * kPage + (character & 0xFF)];
    if (held != kMissing) return false;
    held = number;
    return true;
  }

 private:
  static constexpr size_t kPage = 256;
  static constexpr size_t kPages = 0x1100;

  std::array<uint16_t, kPages> pages_{};  // page 0 stays empty
  std::vector<int32_t> numbers_;
};

}  // namespace fastsft
