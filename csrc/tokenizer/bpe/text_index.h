#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/anonymous_mapping.h"

namespace fastsft {

// A hash table from texts to ids. The texts are copied into a contiguous string.
class TextIndex {
 public:
  static constexpr int32_t kMissing = -1;

  // Reserves room for `num_texts` texts with `num_bytes` bytes together. The table grows when
  // needed, up to 4 GiB for all texts.
  explicit TextIndex(size_t num_texts = 0, size_t num_bytes = 0);

  // Returns false, without overwriting the id, if the text is already in the table.
  bool add(std::string_view text, int32_t id);

  int32_t find(std::string_view text) const {
    const Slot& slot = slots()[slot_of(text, hash_of(text))];
    return slot.end == 0 ? kMissing : slot.id;
  }
  // Prefetches the slot that `find` will read.
  void prefetch(std::string_view text) const {
    __builtin_prefetch(slots() + (hash_of(text) & mask_));
  }

 private:
  struct Slot {  // an empty slot is all zeros
    uint32_t hash;
    uint32_t begin;
    uint32_t end;  // the text's end plus one
    int32_t id;
  };

  static uint32_t hash_of(std::string_view text);
  Slot* slots() const { return static_cast<Slot*>(slots_.data()); }
  // Returns the text's slot, or the empty slot for inserting it.
  size_t slot_of(std::string_view text, uint32_t hash) const {
    size_t at = hash & mask_;
    while (slots()[at].end != 0 && !holds(slots()[at], text, hash)) at = (at + 1) & mask_;
    return at;
  }
  bool holds(const Slot& slot, std::string_view text, uint32_t hash) const {
    return slot.hash == hash && slot.end - slot.begin == text.size() + 1 &&
           std::memcmp(texts_.data() + slot.begin, text.data(), text.size()) == 0;
  }
  void grow();

  size_t mask_;
  size_t num_texts_ = 0;
  AnonymousMapping slots_;
  std::string texts_;
};

inline uint32_t TextIndex::hash_of(std::string_view text) {
  const auto mix = [](uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    return hash ^ hash >> 32;
  };
  uint64_t hash = text.size() * 0x9E3779B97F4A7C15ull;
  uint64_t word = 0;
  for (; text.size() > sizeof word; text.remove_prefix(sizeof word)) {
    std::memcpy(&word, text.data(), sizeof word);
    hash = mix(hash, word);
  }
  word = 0;
  for (const char byte : text) word = word << 8 | static_cast<uint8_t>(byte);
  return static_cast<uint32_t>(mix(hash, word));
}

}  // namespace fastsft
