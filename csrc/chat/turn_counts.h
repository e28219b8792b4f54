#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// How many ids pieces of a transcript have when they are tokenised alone, as FastChat does, found
// from the one tokenisation of the whole wherever the tokenizer's promises allow it and by encoding
// the piece where they do not. Counts include the BOS and EOS that the tokenizer adds.
class TurnCounts {
 public:
  // `tokens` are those of the whole `text`; both must outlive this. `stop` separates the turns.
  // `part` is overwritten.
  TurnCounts(const Tokenizer& tokenizer, std::string_view text, std::span<const Token> tokens,
             std::string_view stop, std::vector<Token>& part);

  // The next turn begins at byte `begin` and ends at byte `end`, where a stop or the end of the
  // text is. Turns must be given from left to right without a gap but the stops.
  void enter(size_t begin, size_t end);
  // Number of ids of the whole turn.
  int64_t count_turn();
  // Number of ids of the turn's bytes up to `end`; the last byte must be a space after a non-space.
  int64_t count_prefix(size_t end);

 private:
  int64_t encode_alone(size_t begin, size_t end) const;
  bool locate();
  bool adjust_first_word();

  const Tokenizer& tokenizer_;
  std::string_view text_;
  std::span<const Token> tokens_;
  std::string_view stop_;
  std::vector<Token>& part_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t first_ = 0;        // token of the turn's beginning
  size_t last_ = 0;         // after its last token
  bool derivable_ = false;  // of this turn
  bool aligned_ = true;     // stops were special tokens so far
  int64_t adjustment_ = 0;  // ids that the first word has more when it is first
};

}  // namespace fastsft
