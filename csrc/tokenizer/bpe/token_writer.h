#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tokenizer/bpe/word_cache.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Appends tokens to a vector through a buffer for some hundred tokens. Output is Token, with
// contiguous byte ranges that begin at `offset`, or int32_t for ids alone.
template <typename Output>
class TokenWriter {
 public:
  TokenWriter(std::vector<Output>& to, uint32_t offset) : to_(&to), next_{staged(), offset} {}
  // Tokens that were not flushed are lost: `flush` may throw, and a destructor must not.
  ~TokenWriter() = default;
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void put(int32_t id, uint32_t size) {
    make_room(1);
    place(next_, id, size);
  }
  void put(std::span<const PackedToken> tokens) {
    for (const PackedToken token : tokens) put(packed_id(token), packed_size(token));
  }
  void flush() {
    to_->insert(to_->end(), staged(), next_.to);
    next_.to = staged();
  }

  // Fast path: `open` returns the next token's position for a loop that keeps the position in
  // registers, and reserves room for `num_words` words (at most kMaxWords) with WordCache::kInline
  // tokens each. `close` stores the final position.
  static constexpr size_t kMaxWords = 256;
  struct Position {
    Output* to;
    uint32_t offset;
  };
  Position open(size_t num_words) {
    make_room(num_words * WordCache::kInline);
    return next_;
  }
  void close(const Position& next) { next_ = next; }
  // Writes the first `count` tokens (at most WordCache::kInline), and may read all elements in
  // `tokens`.
  static void put_inline(Position& next, const std::array<PackedToken, WordCache::kInline>& tokens,
                         size_t count) {
    if constexpr (std::is_same_v<Output, int32_t>) {
      for (size_t i = 0; i < tokens.size(); ++i) next.to[i] = packed_id(tokens[i]);
      next.to += count;
    } else {
      for (size_t i = 0; i < count; ++i) place(next, packed_id(tokens[i]), packed_size(tokens[i]));
    }
  }

 private:
  static constexpr size_t kStaged = kMaxWords * WordCache::kInline;
  static_assert(std::is_trivially_copyable_v<Output>);

  Output* staged() { return reinterpret_cast<Output*>(bytes_); }
  void make_room(size_t count) {
    if (next_.to + count > staged() + kStaged) flush();
  }
  static void place(Position& next, int32_t id, uint32_t size) {
    if constexpr (std::is_same_v<Output, int32_t>) {
      *next.to++ = id;
    } else {
      *next.to++ = {id, next.offset, next.offset + size};
      next.offset += size;
    }
  }

  std::vector<Output>* to_;
  Position next_;
  alignas(16) std::byte bytes_[kStaged * sizeof(Output)];  // memory for Outputs, left uninitialized
};

}  // namespace fastsft
