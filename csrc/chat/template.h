#pragma once

#include <string>

#include "core/registry.h"

namespace fastsft {

// A chat template is data: the literals around each turn and which of them are learned. A new
// template is one new file in templates/ that registers itself.
struct ChatTemplate {
  std::string system;  // the system text with what follows it
  std::string before_user;
  std::string after_user;
  std::string before_assistant;
  std::string after_assistant;  // ends with the stop token
  // FastChat writes a message without text as the role alone, with nothing behind it.
  std::string empty_user;
  std::string empty_assistant;
  size_t learned_lead = 0;  // bytes at the end of before_assistant that are learned with the reply
  bool has_fastchat_labels = false;  // --mask_policy fastchat is defined for it (rule 13)
};

struct ChatTemplateTag {
  static constexpr const char* kNoun = "chat template";
};
using ChatTemplates = Registry<ChatTemplateTag, ChatTemplate>;

}  // namespace fastsft
