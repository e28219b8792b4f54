#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "chat/example.h"
#include "storage/mapped_file.h"

namespace fastsft {

// The label of positions that are not learned.
inline constexpr int64_t kIgnoredLabel = -100;

// Properties of a row besides ids and learned spans. An empty list means the default of plain rows.
struct GeneralRow {
  std::vector<int32_t> labels;     // [length], not shifted, read where learned; empty: the ids
  std::vector<int32_t> positions;  // [length], of the rotary embedding; empty: 0, 1, 2, ...
  std::vector<uint8_t> is_key;     // [length], 0: no token attends to this one; empty: all are keys
  bool has_mask = false;           // it came with an attention mask
  int64_t leading = 0;             // masked tokens in front that were left away
};

// The greatest position is below this: the table of rotary angles has an entry for each.
inline constexpr int64_t kMostPositions = int64_t{1} << 20;

// The four flat arrays of a data set: 4 bytes a token and 8 a learned span, no padding. Row i has
// ids [token_offsets[i], token_offsets[i + 1]) and spans likewise.
struct TokenArrays {
  std::span<const int32_t> ids;
  std::span<const TokenSpan> spans;
  std::span<const int64_t> token_offsets;
  std::span<const int64_t> span_offsets;
};

// Tokenised conversations, in memory of its own or in a mapped file. Row i is the i-th record that
// was not excluded. Rows without targets keep their index.
class TokenDataset {
 public:
  TokenDataset();
  TokenDataset(TokenDataset&&) = default;
  TokenDataset& operator=(TokenDataset&&) = default;
  // Over arrays that are in `file`. `checksum` is what `checksum()` returns.
  TokenDataset(std::shared_ptr<const MappedFile> file, const TokenArrays& arrays, int32_t max_id,
               uint32_t checksum);

  // The id of tokens that no token attends to, in every row: the pad id, where the rows' attention
  // mask is `ids != pad id`. -1: none.
  int32_t masked_id() const { return masked_id_; }
  void set_masked_id(int32_t id) { masked_id_ = id; }

  // Not for a mapped data set: std::logic_error.
  void append(const Example& example);
  void append(std::span<const int32_t> ids, std::span<const TokenSpan> learned);
  // A row that is not plain; never part of a mapped file.
  void append(std::span<const int32_t> ids, std::span<const TokenSpan> learned, GeneralRow general);

  int64_t size() const { return static_cast<int64_t>(arrays_.token_offsets.size()) - 1; }
  int64_t num_tokens() const { return static_cast<int64_t>(arrays_.ids.size()); }
  bool is_mapped() const { return file_ != nullptr; }
  // CRC-32C of all ids, spans, row ends and what is general: equal for equal data sets.
  uint32_t checksum() const;
  // The largest id and label, or -1: a model's vocabulary must hold it.
  int32_t max_id() const { return max_id_; }

  // `row` must be in [0, size()); std::invalid_argument otherwise.
  std::span<const int32_t> ids(int64_t row) const;
  std::span<const TokenSpan> learned(int64_t row) const;
  int64_t length(int64_t row) const;
  // Learned positions after the shift by one: position 0 has nothing before it and never counts
  // (docs/spec/trainer_semantics.md, section 6).
  int64_t num_targets(int64_t row) const;
  // Number of labelled tokens, before the next-token shift.
  int64_t num_labels(int64_t row) const;
  // What the row has next to ids and spans; null for a plain one.
  const GeneralRow* general(int64_t row) const;
  // Rows whose positions tell packed sequences apart (BatchRules).
  int64_t num_packed() const;
  // Label of each token, kIgnoredLabel if it is not learned: [length], not shifted.
  std::vector<int32_t> labels(int64_t row) const;

 private:
  void check_row(int64_t row) const;

  int32_t max_id_ = -1;
  int32_t masked_id_ = -1;
  uint32_t mapped_checksum_ = 0;
  std::vector<int32_t> ids_;
  std::vector<TokenSpan> spans_;
  std::vector<int64_t> token_offsets_;
  std::vector<int64_t> span_offsets_;
  std::map<int64_t, GeneralRow> general_;  // by row
  std::shared_ptr<const MappedFile> file_;
  TokenArrays arrays_;  // of the vectors, or inside the file
};

// A row that a model does not take which counts positions itself: 0, 1, 2, ... from its first
// token.
struct MisplacedRow {
  int64_t row = 0;
  bool begins_masked = false;  // no token attends to its first one; else it has other positions
};

// The first such row of `dataset`; of those with a target where `targets_only`.
std::optional<MisplacedRow> first_misplaced(const TokenDataset& dataset, bool targets_only);

// Throws std::invalid_argument unless the spans are in order, apart, not empty and inside a row of
// `length` ids.
void check_learned(std::span<const TokenSpan> learned, int64_t length);

// Number of rows of `rows` with labels that `others` has, too: the same ids and labels.
int64_t count_shared_rows(const TokenDataset& rows, const TokenDataset& others);

}  // namespace fastsft
