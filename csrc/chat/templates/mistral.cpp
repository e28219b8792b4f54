#include "chat/template.h"

namespace fastsft {
namespace {

const bool kMistralRegistered = ChatTemplates::instance().add(
    "mistral",
    {.after_system = "\n",
     .system_in_user = true,
     .before_user = "[INST] ",
     .after_user = " ",
     .before_assistant = "[/INST] ",
     .stop_token = "</s>",
     .learned_lead = 1,
     .bos = BosRule::kFirstTurn,
     .jinja_digests = {"18f104df66d35dcc5eae04e8831dd58a9b9191f82d54147199fe6bc6c8e5bc4c"}});

}  // namespace
}  // namespace fastsft
