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

const std::string& canonical_template_name(const std::string& name) {
  // Made when first asked for: by then every template has registered itself.
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
