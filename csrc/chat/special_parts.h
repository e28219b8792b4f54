#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastsft {

// Whether texts of a record, written next to each other, can spell a special token that none of
// them holds: one ends with its beginning, and one begins with its end.
class SpecialParts {
 public:
  explicit SpecialParts(const Tokenizer& tokenizer);

  bool can_join(const std::vector<std::string_view>& texts) const;

 private:
  std::vector<std::string> specials_;
};

// Finds the texts of control tokens in data, where they are letters.
class MarkFinder {
 public:
  // `more`: marks next to the tokenizer's control tokens.
  MarkFinder(const Tokenizer& tokenizer, const std::vector<std::string>& more);

  // A mark in `text`; empty when there is none.
  std::string_view find(std::string_view text) const;

 private:
  void add(std::string mark);

  std::map<std::string, std::vector<std::string>> marks_;  // by their first two bytes
};

}  // namespace fastsft
