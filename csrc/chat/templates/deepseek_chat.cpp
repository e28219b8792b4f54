#include "chat/template.h"

namespace fastsft {
namespace {

const bool kDeepseekChatRegistered = ChatTemplates::instance().add(
    "deepseek-chat",
    {.after_system = "\n\n",
     .before_user = "User: ",
     .after_user = "\n\n",
     .before_assistant = "Assistant: ",
     .stop_token = "<｜end▁of▁sentence｜>",
     .learned_lead = 1,
     .bos = BosRule::kFirstTurn,
     .jinja_digests = {"5b0c475e85b3954175a606f8e7540ec0c6a16edb516e2b8cd0c000dff7b1ad65"}});

}  // namespace
}  // namespace fastsft
