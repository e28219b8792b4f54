#include "tokenizer/word_cache.h"

#include <bit>
#include <cstring>

namespace fastsft {
namespace {

constexpr size_t kFirstSlots = 1 << 12;
constexpr size_t kMaxSlots = 1 << 18;
constexpr size_t kMaxLongWords = 1 << 15;

}  // namespace

WordCache::WordCache() : slots_(kFirstSlots) {}

WordCache::Key WordCache::make_key(std::string_view word) {
  unsigned char bytes[16] = {};
  std::memcpy(bytes, word.data(), word.size());
  bytes[15] = static_cast<unsigned char>(word.size());
  Key key;
  std::memcpy(&key.low, bytes, 8);
  std::memcpy(&key.high, bytes + 8, 8);
  return key;
}

size_t WordCache::slot_of(const Key& key) const {
  uint64_t hash = (key.low ^ std::rotl(key.high, 29)) * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93ull;
  size_t slot = hash >> (64 - std::countr_zero(slots_.size()));
  while (slots_[slot].key != key && slots_[slot].key != Key()) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

std::span<const WordToken> WordCache::find(const Key& key) const {
  const Slot& slot = slots_[slot_of(key)];
  if (slot.count == 1) return {&slot.first, 1};
  return {arena_.data() + slot.begin, slot.count};
}

std::span<const WordToken> WordCache::find_long(std::string_view word) const {
  const auto found = long_words_.find(word);
  if (found == long_words_.end()) return {};
  return found->second;
}

void WordCache::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.count != 0) slots_[slot_of(slot.key)] = slot;
  }
}

void WordCache::insert(const Key& key, std::span<const WordToken> tokens) {
  if ((num_used_ + 1) * 2 > slots_.size()) {
    if (slots_.size() == kMaxSlots) return;
    grow();
  }
  ++num_used_;
  Slot& slot = slots_[slot_of(key)];
  slot.key = key;
  slot.begin = static_cast<uint32_t>(arena_.size());
  slot.count = static_cast<uint32_t>(tokens.size());
  slot.first = tokens.front();
  if (tokens.size() > 1) arena_.insert(arena_.end(), tokens.begin(), tokens.end());
}

void WordCache::insert_long(std::string_view word, std::span<const WordToken> tokens) {
  if (word.size() > kMaxLong || long_words_.size() >= kMaxLongWords) return;
  long_words_.emplace(std::string(word), std::vector<WordToken>(tokens.begin(), tokens.end()));
}

}  // namespace fastsft
