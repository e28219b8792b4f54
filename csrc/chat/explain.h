#pragma once

#include <string>
#include <vector>

#include "chat/labeller.h"

namespace fastsft {

// A token in an Explanation.
struct ExplainedToken {
  int32_t id = 0;
  uint32_t begin = 0;  // byte range in the text; empty for BOS and padding
  uint32_t end = 0;
  bool is_learned = false;
};

// A record as the mask policy sees it: the text that the model reads, its segments, its tokens with
// their labels, and the outcome. Text and tokens are empty if the record has no row.
struct Explanation {
  LabelledRecord record;
  Transcript transcript;
  std::vector<ExplainedToken> tokens;
  size_t num_cut = 0;  // number of tokens beyond model_max_length
};

Explanation explain(const Labeller& labeller, const Conversation& conversation);

}  // namespace fastsft
