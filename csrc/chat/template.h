#pragma once

#include <string>
#include <vector>

#include "core/registry.h"

namespace fastsft {

// Where a conversation gets its BOS, if the tokenizer has one.
enum class BosRule {
  kTokenizer,  // in front of the text when the tokenizer adds one
  kFirstTurn,  // always in front of the text
  kEachTurn,   // in front of the text, and written as text in front of every later user message
};

// A chat template is data: the literals around each turn and which of them are learned. A new
// template is one new file in templates/ that registers itself.
//
//   [before_system S after_system] before_user u after_user before_assistant a before_stop stop
//   after_stop before_user ...
//
// Learned: the last `learned_lead` bytes of before_assistant, the reply, before_stop and the stop
// token.
struct ChatTemplate {
  std::string system{};  // S when the record has none
  // Written only where S is not empty.
  std::string before_system{};
  std::string after_system{};
  bool system_in_user = false;  // after the first before_user instead of in front of it

  std::string before_user{};
  std::string after_user{};
  std::string before_assistant{};
  std::string before_stop{};
  std::string stop_token{};  // one token of the tokenizer, by its text
  std::string after_stop{};
  size_t learned_lead = 0;

  BosRule bos = BosRule::kTokenizer;
  bool strips = false;  // white space around every text goes, as Jinja's `trim` does

  // For --mask_policy fastchat: FastChat writes a message without text as the role
  // alone, with nothing after it.
  std::string empty_user{};
  std::string empty_assistant{};
  bool has_fastchat_labels = false;

  std::vector<std::string> aliases{};  // other names, FastChat's spellings among them
  // SHA-256 of published Jinja templates that render the same text.
  std::vector<std::string> jinja_digests{};
};

struct ChatTemplateTag {
  static constexpr const char* kNoun = "chat template";
};
using ChatTemplates = Registry<ChatTemplateTag, ChatTemplate>;

// Equal for templates that render and label alike.
std::string fingerprint(const ChatTemplate& chat_template);

// By name or alias. Throws std::invalid_argument that lists the names.
const ChatTemplate& find_chat_template(const std::string& name);
// The registered name of a name or alias.
const std::string& canonical_template_name(const std::string& name);

}  // namespace fastsft
