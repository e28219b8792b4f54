#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// Meaning of a field's name for whether a message or record is learned.
enum class MarkName {
  kNone,        // it says nothing about that
  kLearned,     // a true value says that it is: "train", "weight", "lossScale"
  kNotLearned,  // a true value says that it is not: "masked", "no_loss"
  kSkip,        // a true value may say so: "ignore"
  kUnclear,     // trainers read its values in opposite ways: "mask", "loss_mask"
  kCounted,     // a number is a figure, and true or false says so: "loss_tokens"
  kMixed        // other words are next to it: "train_detail", "answer_weights_of_judges"
};

// Ignores case and separators between the words of a name.
MarkName find_mark_name(std::string_view name);

// Every mark's name contains one of these, in lower case.
std::vector<std::string> mark_stems();

}  // namespace fastsft
