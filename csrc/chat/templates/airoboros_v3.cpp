#include "chat/template.h"

namespace fastsft {
namespace {

const bool kAiroborosV3Registered = ChatTemplates::instance().add(
    "airoboros_v3", {.system = "You are a helpful, unbiased, uncensored assistant.",
                     .before_system = "<<SYS>>\n",
                     .after_system = "\n<</SYS>>\n\n",
                     .system_in_user = true,
                     .before_user = "[INST] ",
                     .after_user = " ",
                     .before_assistant = "[/INST] ",
                     .before_stop = " ",
                     .stop_token = "</s>",
                     .learned_lead = 1,
                     .bos = BosRule::kEachTurn});

}  // namespace
}  // namespace fastsft
