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

// A token found by its text, apart from the vocabulary (Hugging Face's AddedToken).
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool strips_left = false;   // white space before it belongs to it
  bool strips_right = false;  // white space after it
  bool single_word = false;   // only where no letter, digit or underscore touches it
  bool normalized = false;    // looked for in the normalized text
  bool special = true;        // left out by decode's skip_special_tokens
};

std::vector<const AddedToken*> pointers_to(const std::vector<AddedToken>& tokens);

// Finds added tokens in a text as `tokenizers` does: the leftmost first, of those at one place the
// longest; white space that they strip belongs to them.
class AddedMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  // How far a text has been searched.
  struct Cursor {
    size_t searched = 0;
    size_t done = 0;  // the end of the last match
  };

  // `tokens` must outlive this. Of equal texts the first counts.
  explicit AddedMatcher(const std::vector<const AddedToken*>& tokens);

  // The leftmost and longest text of a token from `from` on; nothing else of the token counts.
  std::optional<Match> find_text(std::string_view text, size_t from) const;
  // The next match after the cursor, which moves on; nothing when there is none.
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
