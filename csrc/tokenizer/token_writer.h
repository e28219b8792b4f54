#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/word_cache.h"

namespace fastsft {

// Appends tokens to a list, some hundred at a time: Output is Token, with byte ranges that follow
// each other from `offset` on, or int32_t, ids alone.
template <typename Output>
class TokenWriter {
 public:
  TokenWriter(std::vector<Output>& to, uint32_t offset) : to_(&to), offset_(offset) {}
  ~TokenWriter() { flush(); }
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void put(int32_t id, uint32_t size) {
    make_room();
    place(count_++, id, size);
  }
  void put(std::span<const PackedToken> tokens) {
    for (const PackedToken token : tokens) put(packed_id(token), packed_size(token));
  }
  // At most WordCache::kInline tokens; all of `tokens` may be read.
  void put_inline(const std::array<PackedToken, WordCache::kInline>& tokens, size_t count) {
    make_room();
    if constexpr (std::is_same_v<Output, int32_t>) {
      for (size_t i = 0; i < tokens.size(); ++i) staged_[count_ + i] = packed_id(tokens[i]);
    } else {
      for (size_t i = 0; i < count; ++i)
        place(count_ + i, packed_id(tokens[i]), packed_size(tokens[i]));
    }
    count_ += count;
  }
  void flush() {
    to_->insert(to_->end(), staged_.begin(), staged_.begin() + count_);
    count_ = 0;
  }

 private:
  static constexpr size_t kStaged = 128;

  void make_room() {
    if (count_ > kStaged - WordCache::kInline) flush();
  }
  void place(size_t at, int32_t id, uint32_t size) {
    if constexpr (std::is_same_v<Output, int32_t>) {
      staged_[at] = id;
    } else {
      staged_[at] = {id, offset_, offset_ + size};
      offset_ += size;
    }
  }

  std::vector<Output>* to_;
  uint32_t offset_;
  size_t count_ = 0;
  std::array<Output, kStaged> staged_;
};

}  // namespace fastsft
