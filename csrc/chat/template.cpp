#include "chat/template.h"

#include <map>

namespace fastsft {
namespace {

using Aliases = std::map<std::string, std::string>;

Aliases collect_aliases() {
  const ChatTemplates& templates = ChatTemplates::instance();
  Aliases aliases;
  for (const std::string& name : templates.names()) {
    aliases.emplace(name, name);
    for (const std::string& alias : templates.get(name).aliases) {
      FASTSFT_ASSERT(!templates.contains(alias) && aliases.emplace(alias, name).second,
                     "two chat templates are called ", alias);
    }
  }
  return aliases;
}

}  // namespace

std::string fingerprint(const ChatTemplate& chat) {
  std::string text = concat(chat.system_in_user, chat.learned_lead, " ", static_cast<int>(chat.bos),
                            chat.strips, chat.has_fastchat_labels);
  for (const std::string* part :
       {&chat.system, &chat.before_system, &chat.after_system, &chat.before_user, &chat.after_user,
        &chat.before_assistant, &chat.before_stop, &chat.stop_token, &chat.after_stop,
        &chat.empty_user, &chat.empty_assistant}) {
    text += concat(" ", part->size(), ":", *part);
  }
  return text;
}

const std::string& canonical_template_name(const std::string& name) {
  // Collected at the first call, because by then every template has registered itself.
  static const Aliases aliases = collect_aliases();
  const auto found = aliases.find(name);
  if (found != aliases.end()) return found->second;
  std::string known;
  for (const auto& [alias, canonical] : aliases) known += (known.empty() ? "" : ", ") + alias;
  throw_invalid("unknown chat template \"", name, "\"; known: ", known);
}

const ChatTemplate& find_chat_template(const std::string& name) {
  return ChatTemplates::instance().get(canonical_template_name(name));
}

}  // namespace fastsft
