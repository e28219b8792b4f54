#include "chat/template.h"

namespace fastsft {
namespace {

const bool kRegistered =
    ChatTemplates::instance().add("deepseek-chat", {.after_system = "\n\n",
                                                    .before_user = "User: ",
                                                    .after_user = "\n\n",
                                                    .before_assistant = "Assistant: ",
                                                    .stop_token = "<｜end▁of▁sentence｜>",
                                                    .learned_lead = 1,
                                                    .bos = BosRule::kFirstTurn});

}  // namespace
}  // namespace fastsft
