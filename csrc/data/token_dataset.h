#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "chat/example.h"
#include "core/growing_array.h"
#include "storage/mapped_file.h"

namespace fastsft {

// The label at positions that are not learned.
inline constexpr int64_t kIgnoredLabel = -100;

// A row's properties besides ids and learned spans. An empty list means the default, as in plain
// rows.
struct GeneralRow {
  std::vector<int32_t> labels;  // [length], not shifted, read at learned positions; empty: the ids
  std::vector<int32_t> positions;  // [length], for the rotary embedding; empty: 0, 1, 2, ...
  std::vector<uint8_t> is_key;  // [length], 0: no token attends to this token; empty: all are keys
  bool has_mask = false;        // true if the row came with an attention mask
  int64_t leading = 0;          // masked tokens removed from the beginning
};

// Positions must be below this limit: the table of rotary angles has an entry for each position.
inline constexpr int64_t kMostPositions = int64_t{1} << 20;

// The flat arrays of a data set: 4 bytes per token and 8 per learned span, without padding. Row i
// has ids [token_offsets[i], token_offsets[i + 1]) and
// spans [span_offsets[i], span_offsets[i + 1]).
struct TokenArrays {
  std::span<const int32_t> ids;
  std::span<const TokenSpan> spans;
  std::span<const int64_t> token_offsets;
  std::span<const int64_t> span_offsets;
};

// Tokenized conversations, in memory or in a mapped file. Row i is the i-th record that was not
// excluded. Rows without targets keep their index.
class TokenDataset {
 public:
  TokenDataset();
  TokenDataset(TokenDataset&&) = default;
  TokenDataset& operator=(TokenDataset&&) = default;
  // Reads arrays inside the mapped `file`. `checksum`: the value that `checksum()` returns.
  TokenDataset(std::shared_ptr<const MappedFile> file, const TokenArrays& arrays, int32_t max_id,
               uint32_t checksum);

  // The pad id, if the rows' attention mask is `ids != pad id`: no token attends to tokens with
  // this id. -1: no such id.
  int32_t masked_id() const { return masked_id_; }
  void set_masked_id(int32_t id) { masked_id_ = id; }

  // Appends a row. Throws std::logic_error for a mapped data set.
  void append(const Example& example);
  void append(std::span<const int32_t> ids, std::span<const TokenSpan> learned);
  // Appends a row with other properties. A mapped file cannot hold such rows.
  void append(std::span<const int32_t> ids, std::span<const TokenSpan> learned, GeneralRow general);

  int64_t size() const { return static_cast<int64_t>(arrays_.token_offsets.size()) - 1; }
  int64_t num_tokens() const { return static_cast<int64_t>(arrays_.ids.size()); }
  bool is_mapped() const { return file_ != nullptr; }
  // Returns a CRC-32C over all rows. Equal data sets have equal checksums.
  uint32_t checksum() const;
  // Returns the largest id or label, which must be inside the model's vocabulary; -1 if there are
  // none.
  int32_t max_id() const { return max_id_; }

  // The following functions throw std::invalid_argument unless `row` is in [0, size()).
  std::span<const int32_t> ids(int64_t row) const;
  std::span<const TokenSpan> learned(int64_t row) const;
  int64_t length(int64_t row) const;
  // Returns the target count: learned positions after the shift to the next token. Position 0 has
  // no token before it and never counts (docs/spec/trainer_semantics.md, section 6).
  int64_t num_targets(int64_t row) const;
  // Returns the labelled token count, before the shift to the next token.
  int64_t num_labels(int64_t row) const;
  // Returns the row's other properties; nullptr for a plain row.
  const GeneralRow* general(int64_t row) const;
  // Returns how many rows hold several packed sequences, which their positions separate
  // (BatchRules).
  int64_t num_packed() const;
  // Returns each token's label, kIgnoredLabel if it is not learned: [length], not shifted.
  std::vector<int32_t> labels(int64_t row) const;

 private:
  void check_row(int64_t row) const;
  // Ends a row at the arrays' ends, and views the arrays where they are now.
  void append_offsets();

  int32_t max_id_ = -1;
  int32_t masked_id_ = -1;
  uint32_t mapped_checksum_ = 0;
  GrowingArray<int32_t> ids_;
  GrowingArray<TokenSpan> spans_;
  GrowingArray<int64_t> token_offsets_;
  GrowingArray<int64_t> span_offsets_;
  std::map<int64_t, GeneralRow> general_;  // properties for the rows that are not plain
  std::shared_ptr<const MappedFile> file_;
  TokenArrays arrays_;  // views into the arrays above or into the file
};

// A row unsuitable for a model that computes positions itself, as 0, 1, 2, ... from the row's first
// token.
struct MisplacedRow {
  int64_t row = 0;
  // true: no token attends to its first token; false: it has other positions
  bool begins_masked = false;
};

// Returns the first such row in `dataset`. `targets_only`: ignore rows without targets.
std::optional<MisplacedRow> first_misplaced(const TokenDataset& dataset, bool targets_only);

// Throws std::invalid_argument unless the spans are ascending, separated, not empty and inside a
// row of `length` ids.
void check_learned(std::span<const TokenSpan> learned, int64_t length);

// Counts the rows with labels in `rows` that also occur in `others`, with the same ids and labels.
int64_t count_shared_rows(const TokenDataset& rows, const TokenDataset& others);

}  // namespace fastsft
