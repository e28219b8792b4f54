#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/json.h"

namespace fastsft {

// The ids that a tokenizer puts around every text.
struct AddedAround {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// What the post_processor of a tokenizer.json adds around a single text: TemplateProcessing,
// ByteLevel and sequences of these. Throws NotNative for another one.
AddedAround parse_post_processor(const Json& section);

}  // namespace fastsft
