#include "chat/template.h"

namespace fastsft {
namespace {

const bool kRegistered = ChatTemplates::instance().add(
    "vicuna_v1.1",
    {.system =
         "A chat between a curious user and an artificial intelligence assistant. "
         "The assistant gives helpful, detailed, and polite answers to the user's questions. ",
     .before_user = "USER: ",
     .after_user = " ",
     .before_assistant = "ASSISTANT: ",
     .after_assistant = "</s>",
     .empty_user = "USER:",
     .empty_assistant = "ASSISTANT:",
     .learned_lead = 1,
     .has_fastchat_labels = true});

}  // namespace
}  // namespace fastsft
