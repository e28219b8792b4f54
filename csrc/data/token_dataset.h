#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chat/example.h"

namespace fastsft {

// Tokenised conversations in three flat arrays: 4 bytes a token and 8 a learned span, no padding.
// Row i belongs to record i of the data set; rows that teach nothing stay in their place.
class TokenDataset {
 public:
  TokenDataset() : token_offsets_{0}, span_offsets_{0} {}

  void append(const Example& example);
  void append(std::span<const int32_t> ids, std::span<const TokenSpan> learned);

  int64_t size() const { return static_cast<int64_t>(token_offsets_.size()) - 1; }
  int64_t num_tokens() const { return static_cast<int64_t>(ids_.size()); }
  // CRC-32C of all ids, spans and row ends: equal for equal data sets.
  uint32_t checksum() const;
  // The largest id, or -1: a model's vocabulary must hold it.
  int32_t max_id() const { return max_id_; }

  // `row` must lie in [0, size()); std::invalid_argument otherwise.
  std::span<const int32_t> ids(int64_t row) const;
  std::span<const TokenSpan> learned(int64_t row) const;
  int64_t length(int64_t row) const;
  // Learned positions after the shift by one: position 0 has nothing before it and never counts
  // (trainer_semantics.md, section 6).
  int64_t num_targets(int64_t row) const;

 private:
  void check_row(int64_t row) const;

  int32_t max_id_ = -1;
  std::vector<int32_t> ids_;
  std::vector<TokenSpan> spans_;
  std::vector<int64_t> token_offsets_;
  std::vector<int64_t> span_offsets_;
};

}  // namespace fastsft
