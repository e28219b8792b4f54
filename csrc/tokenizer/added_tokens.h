#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// A token that is found by its text before the vocabulary is applied (AddedToken in Hugging Face's
// `tokenizers`).
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool strips_left = false;   // the token includes white space before its text
  bool strips_right = false;  // the token includes white space after its text
  bool single_word = false;   // ignored if a letter, digit or underscore is next to its text
  bool normalized = false;    // searched for in the normalized text
  bool special = true;        // skipped by `decode` with skip_special_tokens
};

std::vector<const AddedToken*> pointers_to(const std::vector<AddedToken>& tokens);

// Finds added tokens in a text as `tokenizers` does: the leftmost match first, and the longest
// match at the same position. White space that a token strips belongs to its match.
class AddedMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  // The progress of a search through a text.
  struct Cursor {
    size_t searched = 0;
    size_t done = 0;  // end of the last match
  };

  // `tokens` must outlive this object. If several tokens have the same text, the first is used.
  explicit AddedMatcher(const std::vector<const AddedToken*>& tokens);

  // Returns the leftmost token text from `from` on, the longest at its position. Ignores the
  // token's flags.
  std::optional<Match> find_text(std::string_view text, size_t from) const;
  // Returns the next match after `cursor` and advances it. Returns nothing if there is no further
  // match.
  std::optional<Match> find_next(std::string_view text, SpecialText specials, Cursor& cursor) const;

  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    const AddedToken* token = nullptr;
  };

  void add(const AddedToken* token);
  const AddedToken* find_longest(std::string_view text, size_t at) const;

  std::vector<Node> nodes_{1};
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte
  std::array<bool, 256> begins_{};
  std::optional<char> only_begin_;
};

}  // namespace fastsft
