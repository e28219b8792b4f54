#include "chat/record_splitter.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/byte_classes.h"
#include "core/json_scanner.h"

namespace fastsft {
namespace {

constexpr size_t kBlocksAtOnce = 32;

static_assert(kJsonBlockSize == kByteBlock);
// The bytes [ and ] are { and } without the bit 0x20.
using JsonClassifier = ByteClassifier<JsonBlock, ByteSet::of('"'), ByteSet::of('\\'),
                                      ByteSet({'{', '{', true}, {'}', '}', true})>;

// Returns a mask with the escaped bytes: a backslash that is not escaped itself precedes each.
// `escaped`: whether the block's first byte is escaped; on return, whether the first byte after the
// block is escaped.
uint64_t find_escaped(uint64_t backslashes, bool& escaped) {
  uint64_t result = escaped ? 1 : 0;
  if (backslashes == 0) {
    escaped = false;
    return result;
  }
  uint64_t open = backslashes & ~result;
  escaped = false;
  while (open != 0) {
    const int at = std::countr_zero(open);
    if (at == 63) {
      escaped = true;
      break;
    }
    const uint64_t next = uint64_t{2} << at;
    result |= next;
    open &= ~(next | next >> 1);
  }
  return result;
}

// Returns a mask whose bit i is set if an odd number of the bits 0 to i are set in x.
uint64_t prefix_xor(uint64_t x) {
  for (int shift = 1; shift < 64; shift *= 2) x ^= x << shift;
  return x;
}

// Returns true if the text before a record is white space and, unless the record is the first, a
// comma.
bool is_plain_lead(std::string_view lead, bool is_first) {
  size_t at = std::min(lead.find_first_not_of(kJsonSpace), lead.size());
  if (!is_first) {
    if (at == lead.size() || lead[at] != ',') return false;
    at = std::min(lead.find_first_not_of(kJsonSpace, at + 1), lead.size());
  }
  return at == lead.size();
}

// Counts records that are neither objects nor lists, up to the first error.
int64_t count_scalars(std::string_view text, bool is_first) {
  int64_t count = 0;
  try {
    JsonScanner scanner(text);
    scanner.resume_list(is_first);
    while (scanner.next_item()) {
      scanner.skip();
      ++count;
    }
  } catch (const JsonFault&) {
  }
  return count;
}

}  // namespace

void classify_json(const char* text, size_t count, JsonBlock* blocks) {
  static const JsonClassifier::Function classify = JsonClassifier::fastest();
  classify(text, count, blocks);
}

void classify_json_portable(const char* text, size_t count, JsonBlock* blocks) {
  JsonClassifier::functions().front()(text, count, blocks);
}

void ArraySplitter::split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices) {
  std::array<JsonBlock, kBlocksAtOnce> blocks;
  begin_ = 0;
  while (depth_ > 0 && text.size() - scanned_ >= kJsonBlockSize) {
    const size_t count = std::min(kBlocksAtOnce, (text.size() - scanned_) / kJsonBlockSize);
    classify_json(text.data() + scanned_, count, blocks.data());
    for (size_t i = 0; i < count && depth_ > 0; ++i, scanned_ += kJsonBlockSize) {
      const uint64_t quotes = blocks[i].quotes & ~find_escaped(blocks[i].backslashes, escaped_);
      const uint64_t inside = prefix_xor(quotes) ^ in_string_;
      in_string_ = static_cast<uint64_t>(static_cast<int64_t>(inside) >> 63);
      split_block(text, scanned_, blocks[i].brackets & ~inside, slices);
    }
  }
  if (depth_ > 0 && is_end) {
    std::array<char, kJsonBlockSize> rest;
    rest.fill(' ');
    std::copy(text.begin() + static_cast<int64_t>(scanned_), text.end(), rest.begin());
    classify_json(rest.data(), 1, blocks.data());
    const uint64_t quotes = blocks[0].quotes & ~find_escaped(blocks[0].backslashes, escaped_);
    split_block(text, scanned_, blocks[0].brackets & ~(prefix_xor(quotes) ^ in_string_), slices);
  }
  if (depth_ <= 0 || is_end) finish(text, is_end, slices);
  if (!slices.empty()) {
    const size_t cut = slices.back().end;
    scanned_ -= std::min(scanned_, cut);
    record_ -= std::min(record_, cut);
    closed_ -= std::min(closed_, cut);
  }
}

void ArraySplitter::split_block(std::string_view text, size_t at, uint64_t brackets,
                                std::vector<RecordSlice>& slices) {
  for (; brackets != 0; brackets &= brackets - 1) {
    const size_t position = at + static_cast<size_t>(std::countr_zero(brackets));
    const bool opens = (text[position] | 0x20) == '{';
    if (opens && depth_++ == 1) record_ = position;
    if (opens) continue;
    if (--depth_ == 1) add(text, position + 1, false, slices);
    if (depth_ == 0) {
      closed_ = position + 1;
      return;
    }
  }
}

void ArraySplitter::add(std::string_view text, size_t end, bool is_last,
                        std::vector<RecordSlice>& slices) {
  RecordSlice slice{begin_, end, 1, is_first_, is_last};
  const std::string_view lead = text.substr(begin_, (is_last ? end : record_) - begin_);
  if (is_last || !is_plain_lead(lead, is_first_)) {
    slice.num_records = count_scalars(lead, is_first_) + (is_last ? 0 : 1);
  }
  slices.push_back(slice);
  is_first_ = false;
  begin_ = end;
}

// Ends the array. Only white space may follow it, as much as the file has.
void ArraySplitter::finish(std::string_view text, bool is_end, std::vector<RecordSlice>& slices) {
  const bool has_rest =
      depth_ <= 0 && text.find_first_not_of(kJsonSpace, closed_) != std::string_view::npos;
  if (!is_end && !has_rest) return;
  add(text, text.size(), true, slices);
  is_done_ = true;
}

void LineSplitter::split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t found = text.find('\n', std::max(begin, scanned_));
    if (found == std::string_view::npos && !is_end) break;
    const size_t end = std::min(found, text.size() - 1) + 1;
    const std::string_view line = text.substr(begin, end - begin);
    const bool is_blank = line.find_first_not_of(kJsonSpace) == std::string_view::npos;
    slices.push_back({begin, end, is_blank ? 0 : 1, false, false});
    begin = end;
  }
  scanned_ = text.size() - begin;
}

}  // namespace fastsft
