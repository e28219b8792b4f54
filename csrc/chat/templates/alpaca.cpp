#include "chat/template.h"

namespace fastsft {
namespace {

const bool kAlpacaRegistered = ChatTemplates::instance().add(
    "alpaca", {.system = "Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.",
               .after_system = "\n\n",
               .before_user = "### Instruction: ",
               .after_user = "\n\n",
               .before_assistant = "### Response: ",
               .stop_token = "</s>",
               .learned_lead = 1});

}  // namespace
}  // namespace fastsft
