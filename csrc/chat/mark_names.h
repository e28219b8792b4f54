#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// The meaning that a field's name has as a train mark, for the message or record that has the
// field.
enum class MarkName {
  kNone,        // nothing
  kLearned,     // a true value means that it is learned: "train", "weight", "lossScale"
  kNotLearned,  // a true value means that it is not learned: "masked", "no_loss"
  kSkip,        // a true value may mean that it is not learned: "ignore"
  kUnclear,     // trainers read its values in opposite ways: "mask", "loss_mask"
  kCounted,     // a number is a statistic; true and false are refused as unclear: "loss_tokens"
  kMixed        // contains unrelated words, too: "train_detail", "answer_weights_of_judges"
};

// Returns the meaning of a field's name. Ignores case and separators between words.
MarkName find_mark_name(std::string_view name);

// Returns word stems in lower case. Every train mark's name contains at least one stem.
std::vector<std::string> mark_stems();

}  // namespace fastsft
