#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// Finds out whether texts of a record can spell a special token together when a template writes
// them next to each other: one text ends with the token's beginning, and another begins with its
// end.
class SpecialParts {
 public:
  explicit SpecialParts(const Tokenizer& tokenizer);

  bool can_join(const std::vector<std::string_view>& texts) const;

 private:
  std::vector<std::string> specials_;
};

// Finds control tokens' texts inside data, in which they are plain text.
class MarkFinder {
 public:
  // `more`: texts to find in addition to the tokenizer's control tokens.
  MarkFinder(const Tokenizer& tokenizer, const std::vector<std::string>& more);

  // Returns a control token's text that occurs in `text`; empty if there is none.
  std::string_view find(std::string_view text) const;

 private:
  void add(std::string mark);

  std::map<std::string, std::vector<std::string>> marks_;  // by the first two bytes
};

}  // namespace fastsft
