#include "tokenizer/sentencepiece/word_starts.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/byte_classes.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {

const std::vector<FindMasks>& mask_finders() {
  return ByteClassifier<ByteMasks, ByteSet::of(' '), ByteSet::of(kSpaceMark[0])>::functions();
}

// Adds every U+2581 to the masks: its three bytes count as spaces, and its first byte is a
// beginning.
void WordStarts::add_marks(size_t block, uint64_t leads, uint64_t& begins, uint64_t& spaces) {
  for (; leads != 0; leads &= leads - 1) {
    const int bit = std::countr_zero(leads);
    if (text_.compare(block + bit, kSpaceMark.size(), kSpaceMark) != 0) continue;
    begins |= uint64_t{1} << bit;
    spaces |= uint64_t{7} << bit;
    if (bit > 61) spilled_ = uint64_t{7} >> (64 - bit);
  }
}

bool WordStarts::next(std::array<uint32_t, kPart>& starts, size_t& count) {
  count = 0;
  if (at_ >= text_.size()) return false;
  constexpr size_t kBlocks = kPart / kByteBlock;
  static const FindMasks find_bytes = mask_finders().back();
  ByteMasks masks[kBlocks];
  const size_t size = std::min(text_.size() - at_, kPart);
  const size_t whole = size / kByteBlock;
  find_bytes(text_.data() + at_, whole, masks);
  if (size % kByteBlock != 0) {
    char tail[kByteBlock] = {};
    std::memcpy(tail, text_.data() + at_ + whole * kByteBlock, size % kByteBlock);
    find_bytes(tail, 1, masks + whole);
  }
  for (size_t i = 0; i * kByteBlock < size; ++i) {
    const size_t block = at_ + i * kByteBlock;
    uint64_t begins = masks[i].spaces;
    uint64_t spaces = masks[i].spaces | spilled_;
    spilled_ = 0;
    if (masks[i].leads != 0) add_marks(block, masks[i].leads, begins, spaces);
    if (rule_ == WordRule::kRunOfSpaces) begins &= ~(spaces << 1 | after_space_);
    after_space_ = spaces >> 63;
    for (; begins != 0; begins &= begins - 1) {
      starts[count++] = static_cast<uint32_t>(block + std::countr_zero(begins));
    }
  }
  at_ += size;
  if (count > 0 && starts[0] == 0)
    std::copy(starts.begin() + 1, starts.begin() + count--, starts.begin());
  return true;
}

}  // namespace fastsft
