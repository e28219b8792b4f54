#include "tokenizer/bpe/character_table.h"

namespace fastsft {

bool CharacterTable::add(char32_t character, int32_t number) {
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

}  // namespace fastsft
