#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

// Half-open range of token positions.
struct TokenSpan {
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

// Token ids of one conversation without padding, and its learned positions. The label of position p
// is ids[p] if p is in a learned span, else -100. Labels are not shifted. Spans are in order, not
// empty and do not touch.
struct Example {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> learned;
};

// The numbers of FastChat's warning "tokenization mismatch: {counted} vs. {real}. #turn = {turns}."
struct Mismatch {
  int64_t counted = 0;
  int64_t real = 0;
  int64_t turns = 0;
};

// One labelled conversation.
struct Labels {
  Example example;
  bool dropped = false;  // FastChat takes every label away; `mismatch` says why
  Mismatch mismatch;
  bool truncated = false;  // ids were cut off on the right
  std::string merged;      // a token that has the end of a prompt and the beginning of its reply
};

}  // namespace fastsft
