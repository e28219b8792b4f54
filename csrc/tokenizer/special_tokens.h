#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Finds added tokens in a text: the leftmost first, of those at one place the longest, as the
// splitting trie of Hugging Face's slow tokenizers does.
class SpecialTokens {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };

  explicit SpecialTokens(std::vector<AddedToken> tokens);

  std::optional<Match> find(std::string_view text, size_t from) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool strips() const;

 private:
  std::vector<AddedToken> tokens_;  // longest first
  std::array<bool, 256> begins_{};
  std::optional<char> only_begin_;
};

// `text` without the white space at its end or beginning, as str.rstrip and str.lstrip of Python.
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text);

}  // namespace fastsft
