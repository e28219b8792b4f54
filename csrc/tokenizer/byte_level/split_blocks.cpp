#include "tokenizer/byte_level/split_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/byte_classes.h"

namespace fastsft {
namespace {

constexpr size_t kBlock = kByteBlock;

// Returns a mask with the lowest `count` bits set.
uint64_t low_bits(size_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// Makes every contraction ('s, 'll) whose apostrophe begins a piece its own piece.
uint64_t cut_contractions(SplitPattern pattern, std::string_view text, uint64_t quotes,
                          uint64_t starts) {
  for (; quotes != 0; quotes &= quotes - 1) {
    const size_t at = std::countr_zero(quotes);
    const size_t size = find_contraction(pattern, text, at);
    if (size == 0) continue;
    starts &= ~(low_bits(size - 1) << (at + 1));
    if (at + size < kBlock) starts |= 1ull << (at + size);
  }
  return starts;
}

// A block's class masks, limited to the bytes `valid` that belong to it, and masks derived from
// them.
struct Block {
  Block(const ClassMasks& masks, uint64_t valid)
      : letters(masks.letters & valid),
        digits(masks.digits & valid),
        spaces(masks.spaces & valid),
        newlines(masks.newlines & valid),
        blanks(masks.blanks & valid),
        others(valid & ~(masks.letters | masks.digits | masks.spaces)),
        before_word(valid & ~masks.spaces) {
    before_word >>= 1;
  }
  uint64_t letters, digits, spaces, newlines, blanks, others;
  uint64_t before_word;  // bytes before a byte that is not a space
};

uint64_t run_begins(uint64_t run) { return run & ~(run << 1); }

uint64_t find_gpt2_starts(const Block& b) {
  const uint64_t words = run_begins(b.letters) | run_begins(b.digits) | run_begins(b.others);
  const uint64_t last_spaces = b.spaces & (b.spaces << 1) & b.before_word;
  return (words & ~(b.blanks << 1)) | run_begins(b.spaces) | last_spaces;
}

// Returns the starts of groups with `max_digits` digits, counted from each run's beginning.
uint64_t find_digit_starts(uint64_t digits, size_t max_digits) {
  if (max_digits == 1) return digits;
  const uint64_t inside = digits & (digits << 1) & (digits << 2) & (digits << 3);
  uint64_t starts = run_begins(digits);
  for (uint64_t next = starts; next != 0; starts |= next) next = (next << 3) & inside;
  return starts;
}

// Makes spaces after the last newline in a run their own piece.
uint64_t find_starts_behind_newlines(const Block& b, uint64_t spaces) {
  const uint64_t plain = spaces & ~b.newlines;
  uint64_t starts = 0;
  for (uint64_t left = plain & ((b.newlines & spaces) << 1); left != 0; left &= left - 1) {
    const size_t at = std::countr_zero(left);
    const size_t end = at + std::countr_one(plain >> at);
    if (end >= kBlock || (b.newlines >> end & 1) == 0) starts |= 1ull << at;
  }
  return starts;
}

uint64_t find_cl100k_starts(const Block& b, size_t max_digits) {
  const uint64_t plain_spaces = b.spaces & ~b.newlines;
  const uint64_t others = run_begins(b.others) & ~(b.blanks << 1);
  // A word includes one character before it: a space, or a single other character.
  const uint64_t letters = run_begins(b.letters) & ~(plain_spaces << 1) & ~(others << 1);
  // Newlines after other characters belong to these characters.
  const uint64_t first_behind = b.newlines & (b.others << 1);
  const uint64_t behind = b.newlines & (b.newlines ^ (b.newlines + first_behind));
  const uint64_t spaces = b.spaces & ~behind;
  const uint64_t last_spaces = plain_spaces & (spaces << 1) & b.before_word;
  return letters | others | find_digit_starts(b.digits, max_digits) | run_begins(spaces) |
         last_spaces | find_starts_behind_newlines(b, spaces);
}

// Keeps the starts that do not depend on bytes after the block: a contraction depends on two more
// bytes, and a run of spaces must be complete.
BlockStarts keep_certain(uint64_t starts, uint64_t spaces, size_t size) {
  const size_t run = std::countl_one(spaces << (kBlock - size));
  const size_t last = std::min(size - std::min<size_t>(size, 2), size - run);
  const uint64_t certain = starts & low_bits(last);
  if (certain <= 1) return {1, 0};
  return {certain, static_cast<uint32_t>(63 - std::countl_zero(certain))};
}

}  // namespace

ClassifyBytes byte_classifier(bool portable) {
  using Classifier = ByteClassifier<ClassMasks, ByteSet({'a', 'z', true}), ByteSet({'0', '9'}),
                                    ByteSet({' ', ' '}, {'\t', '\r'}), ByteSet::of('\n', '\r'),
                                    ByteSet::of(' '), ByteSet::of('\''), ByteSet({0x80, 0xFF})>;
  return portable ? Classifier::functions().front() : Classifier::fastest();
}

BlockStarts find_block_starts(SplitPattern pattern, std::string_view text, ClassifyBytes classify) {
  char copy[kBlock] = {};
  const char* bytes = text.data();
  if (text.size() < kBlock) {
    std::memcpy(copy, text.data(), text.size());
    bytes = copy;
  }
  ClassMasks masks;
  classify(bytes, 1, &masks);
  const size_t seen = std::min(text.size(), kBlock);
  const size_t size = std::min<size_t>(seen, std::countr_zero(masks.high));
  if (size == 0) return {1, 0};
  const Block block(masks, low_bits(size));
  uint64_t starts = pattern == SplitPattern::kGpt2 ? find_gpt2_starts(block)
                                                   : find_cl100k_starts(block, max_digits(pattern));
  starts |= 1;
  const uint64_t quotes = masks.quotes & starts & low_bits(size);
  if (quotes != 0) starts = cut_contractions(pattern, text, quotes, starts);
  if (size == text.size()) return {starts & low_bits(size), static_cast<uint32_t>(size)};
  return keep_certain(starts, block.spaces, size);
}

}  // namespace fastsft
