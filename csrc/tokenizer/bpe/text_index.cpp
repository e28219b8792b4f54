#include "tokenizer/bpe/text_index.h"

#include <bit>
#include <span>
#include <utility>

namespace fastsft {

TextIndex::TextIndex(size_t num_texts, size_t num_bytes)
    : mask_(std::bit_ceil(num_texts * 2 + 2) - 1), slots_((mask_ + 1) * sizeof(Slot)) {
  texts_.reserve(num_bytes);
}

bool TextIndex::add(std::string_view text, int32_t id) {
  if (2 * num_texts_ > mask_) grow();
  const uint32_t hash = hash_of(text);
  Slot& slot = slots()[slot_of(text, hash)];
  if (slot.end != 0) return false;
  const auto begin = static_cast<uint32_t>(texts_.size());
  slot = {hash, begin, static_cast<uint32_t>(begin + text.size() + 1), id};
  texts_ += text;
  ++num_texts_;
  return true;
}

void TextIndex::grow() {
  const size_t size = mask_ + 1;
  const AnonymousMapping old = std::exchange(slots_, AnonymousMapping(2 * size * sizeof(Slot)));
  mask_ = 2 * size - 1;
  const auto* held = static_cast<const Slot*>(old.data());
  for (const Slot& slot : std::span(held, size)) {
    size_t at = slot.hash & mask_;
    while (slots()[at].end != 0) at = (at + 1) & mask_;
    if (slot.end != 0) slots()[at] = slot;
  }
}

}  // namespace fastsft
