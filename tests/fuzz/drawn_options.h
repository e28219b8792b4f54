#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>

#include "chat/label_options.h"
#include "chat/template.h"

namespace fastsft::fuzz {

// Random choices that depend on a seed alone.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  size_t below(size_t limit) { return random_() % limit; }
  bool coin() { return below(2) == 0; }
  template <typename Choice>
  Choice of(std::initializer_list<Choice> choices) {
    return *std::next(choices.begin(), static_cast<ptrdiff_t>(below(choices.size())));
  }

 private:
  std::mt19937 random_;
};

// Settings of a run that learns as much as it can: all replies, calls and thoughts.
inline LabelOptions draw_options(Draw& draw) {
  LabelOptions options;
  const auto& names = ChatTemplates::instance().names();
  options.max_length = draw.of({int64_t{1}, int64_t{60}, int64_t{200}, int64_t{1} << 20});
  options.pad_id = 258;
  options.role_aliases = draw.coin();
  if (draw.coin()) options.role_map = {{"bot", "assistant"}, {"function_call", "gpt"}};
  options.overlong = draw.of({Overlong::kTruncate, Overlong::kTruncate, Overlong::kSplit});
  options.on_bad_sample = draw.of({OnBadSample::kError, OnBadSample::kSkip});
  if (draw.below(6) == 0) return options;  // FastChat's labels
  options.mask_policy = MaskPolicy::kSpans;
  options.chat_template = draw.coin() ? kModelTemplate : names[draw.below(names.size())];
  options.on_bad_sample = draw.of({OnBadSample::kError, OnBadSample::kSkip, OnBadSample::kRepair});
  options.boundary_tokens = draw.of({BoundaryTokens::kMerge, BoundaryTokens::kSplit});
  options.train_turns = draw.of(
      {TrainTurns::kAll, TrainTurns::kAll, TrainTurns::kEach, TrainTurns::kEachWithThoughts});
  if (options.chat_template != kModelTemplate) return options;
  for (const char* name : {"tools", "chat_template_kwargs", "enable_thinking", "tool_calls",
                           "reasoning_content", "second_system", "later_system"}) {
    if (draw.below(3) != 0) options.template_fields.emplace_back(name);
  }
  const std::string ids = draw.of({"", "call_ids", "short_call_ids", "named_call_ids"});
  if (!ids.empty()) options.template_fields.push_back(ids);
  return options;
}

// The same settings, but for a choice by which less is learned. What counts from the end of a
// conversation is refused with pieces of it.
inline LabelOptions draw_narrower(Draw& draw, LabelOptions options) {
  const bool is_split = options.overlong == Overlong::kSplit;
  switch (draw.below(6)) {
    case 0:
      options.learn = is_split ? Learn::kMarked : Learn::kLast;
      break;
    case 1:
      options.learn = is_split ? Learn::kMarked : Learn::kAfterLastUser;
      break;
    case 2:
      options.learn = Learn::kMarked;
      break;
    case 3:
      options.learn_tool_calls = false;
      break;
    case 4:
      options.learn_thoughts = LearnThoughts::kFilled;
      break;
    default:
      options.learn_thoughts = LearnThoughts::kNone;
  }
  return options;
}

}  // namespace fastsft::fuzz
