#include "chat/template.h"

namespace fastsft {
namespace {

const bool kVicunaV11Registered = ChatTemplates::instance().add(
    "vicuna_v1.1",
    {.system = "A chat between a curious user and an artificial intelligence assistant. The "
               "assistant gives helpful, detailed, and polite answers to the user's questions.",
     .after_system = " ",
     .before_user = "USER: ",
     .after_user = " ",
     .before_assistant = "ASSISTANT: ",
     .stop_token = "</s>",
     .learned_lead = 1,
     .empty_user = "USER:",
     .empty_assistant = "ASSISTANT:",
     .has_fastchat_labels = true,
     .aliases = {"vicuna"}});

}  // namespace
}  // namespace fastsft
