#pragma once

#include <string>
#include <vector>

#include "core/registry.h"

namespace fastsft {

// The places for BOS tokens, if the tokenizer has BOS.
enum class BosRule {
  kTokenizer,  // in front of the text, if the tokenizer adds BOS
  kFirstTurn,  // always in front of the text
  kEachTurn,   // in front of the text, and as text before every later user message
};

// A chat template as data: the literal texts around each turn, and which of them are learned. A new
// template is a new entry in templates.cpp.
//
//   [before_system S after_system] before_user u after_user before_assistant a before_stop stop
//   after_stop before_user ...
//
// The learned part of a turn is the last `learned_lead` bytes of before_assistant, the reply a,
// before_stop and the stop token.
struct ChatTemplate {
  std::string system{};  // the system text S if the record has none
  // Written only if S is not empty.
  std::string before_system{};
  std::string after_system{};
  bool system_in_user = false;  // the system part comes after the first before_user

  std::string before_user{};
  std::string after_user{};
  std::string before_assistant{};
  std::string before_stop{};
  std::string stop_token{};  // text of the stop token, which is a single token in the tokenizer
  std::string after_stop{};
  size_t learned_lead = 0;

  BosRule bos = BosRule::kTokenizer;
  bool strips = false;  // removes white space around every text, like Jinja's `trim`

  // For --mask_policy fastchat: the text for a message without content. FastChat writes only the
  // role, with nothing after it.
  std::string empty_user{};
  std::string empty_assistant{};
  bool has_fastchat_labels = false;

  std::vector<std::string> aliases{};  // other names, such as FastChat's spellings
  // SHA-256 digests of published Jinja templates that render the same text.
  std::vector<std::string> jinja_digests{};
};

struct ChatTemplateTag {
  static constexpr const char* kNoun = "chat template";
};
using ChatTemplates = Registry<ChatTemplateTag, ChatTemplate>;

// Returns a text that is equal for templates that render and label alike.
std::string fingerprint(const ChatTemplate& chat_template);

// Finds a template by name or alias. Throws std::invalid_argument, which lists the known names, if
// there is none.
const ChatTemplate& find_chat_template(const std::string& name);
// Returns the registered name for a name or alias.
const std::string& canonical_template_name(const std::string& name);

}  // namespace fastsft
