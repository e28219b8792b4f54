#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

// A half-open range [begin, end) with token positions.
struct TokenSpan {
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

// A conversation's token ids without padding, and its targets. The label at position p is ids[p] if
// p lies in `learned`, else -100. Labels are not shifted. The spans are sorted, not empty, and do
// not touch.
struct Example {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> learned;
};

// The numbers in FastChat's warning "tokenization mismatch: {counted} vs. {real}. #turn = {turns}."
struct Mismatch {
  int64_t counted = 0;
  int64_t real = 0;
  int64_t turns = 0;
};

// A conversation's labels.
struct Labels {
  Example example;
  bool dropped = false;  // FastChat removes all labels; `mismatch` says why
  Mismatch mismatch;
  bool truncated = false;  // ids were cut off on the right
  // Text of a token that contains a prompt's end and the beginning of its reply; "" if there is
  // none.
  std::string merged;
};

}  // namespace fastsft
