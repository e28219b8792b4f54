#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// Counts the ids in parts of a transcript as if each part was tokenised alone, as FastChat does.
// Usually the count is derived from the whole text's tokens. If the tokenizer's guarantees do not
// allow that, the part is encoded. Counts include the BOS and EOS that the tokenizer adds.
class TurnCounts {
 public:
  // `tokens`: the tokens of the whole `text`; both must outlive this object. `stop`: the text that
  // separates turns. `part`: scratch space, overwritten.
  TurnCounts(const Tokenizer& tokenizer, std::string_view text, std::span<const Token> tokens,
             std::string_view stop, std::vector<Token>& part);

  // Begins the next turn, bytes [begin, end), which is followed by a stop or the text's end. Turns
  // must be given from left to right, separated only by stops.
  void enter(size_t begin, size_t end);
  // Returns the number of ids in the whole turn.
  int64_t count_turn();
  // Returns the number of ids in the turn's bytes up to `end`. The last byte must be a space that
  // follows a non-space.
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
  size_t first_ = 0;        // index of the turn's first token
  size_t last_ = 0;         // index after the turn's last token
  bool derivable_ = false;  // the turn's count can be derived from `tokens_`
  bool aligned_ = true;     // all stops so far were special tokens
  int64_t adjustment_ = 0;  // extra ids of the first word when it begins a text
};

}  // namespace fastsft
