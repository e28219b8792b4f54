#pragma once

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

}  // namespace fastsft
