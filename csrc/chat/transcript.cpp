#include "chat/transcript.h"

namespace fastsft {

void render_template(const ChatTemplate& chat_template, const Turns& turns,
                     Transcript& transcript) {
  std::string& text = transcript.text;
  text = chat_template.system;
  transcript.learned.clear();
  for (size_t i = 0; i < turns.texts.size(); ++i) {
    const bool is_user = i % 2 == 0;
    const std::string& message = *turns.texts[i];
    if (message.empty()) {
      text += is_user ? chat_template.empty_user : chat_template.empty_assistant;
      continue;
    }
    if (is_user) {
      text.append(chat_template.before_user).append(message).append(chat_template.after_user);
      continue;
    }
    text += chat_template.before_assistant;
    const auto begin = static_cast<uint32_t>(text.size() - chat_template.learned_lead);
    text.append(message).append(chat_template.after_assistant);
    transcript.learned.push_back({begin, static_cast<uint32_t>(text.size())});
  }
}

}  // namespace fastsft
