#include "tokenizer/pretoken_cache.h"

#include <algorithm>

namespace fastsft {
namespace {

constexpr size_t kFirstSlots = 1 << 12;
constexpr size_t kMaxSlots = 1 << 18;
constexpr size_t kMaxLongWords = 1 << 15;

}  // namespace

PretokenCache::PretokenCache() : slots_(kFirstSlots), mask_(kFirstSlots / 2 - 1) {}

bool PretokenCache::is_packable(std::span<const WordToken> tokens) {
  return tokens.size() <= kMaxPacked &&
         std::all_of(tokens.begin(), tokens.end(), [](auto& token) { return token.id < 1 << 28; });
}

// The newer word takes the first place of its bucket, the one that was there the second.
void PretokenCache::place(const Slot& slot) {
  Slot* pair = &slots_[2 * bucket_of(slot.key)];
  pair[1] = pair[0];
  pair[0] = slot;
}

void PretokenCache::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() / 2 - 1;
  for (const Slot& slot : old) {
    if (slot.key != Key()) place(slot);
  }
}

void PretokenCache::insert(const Key& key, std::span<const WordToken> tokens) {
  if (++num_inserted_ * 2 > slots_.size() && slots_.size() < kMaxSlots) grow();
  Slot slot;
  slot.key = key;
  for (size_t i = 0; i < tokens.size(); ++i) {
    slot.tokens[i] = static_cast<uint32_t>(tokens[i].id) << 4 | tokens[i].size;
  }
  place(slot);
}

std::span<const WordToken> PretokenCache::find_long(std::string_view word) const {
  const auto found = long_words_.find(word);
  if (found == long_words_.end()) return {};
  return found->second;
}

void PretokenCache::insert_long(std::string_view word, std::span<const WordToken> tokens) {
  if (word.size() > kMaxLong) return;
  if (long_words_.size() >= kMaxLongWords) long_words_.clear();
  long_words_.emplace(std::string(word), std::vector<WordToken>(tokens.begin(), tokens.end()));
}

}  // namespace fastsft
