#include "chat/template.h"

namespace fastsft {
namespace {

const bool kAiroborosV2Registered =
    ChatTemplates::instance().add("airoboros_v2", {.system = "A chat.",
                                                   .after_system = "\n",
                                                   .before_user = "USER: ",
                                                   .after_user = "\n",
                                                   .before_assistant = "ASSISTANT: ",
                                                   .stop_token = "</s>",
                                                   .learned_lead = 1});

}  // namespace
}  // namespace fastsft
