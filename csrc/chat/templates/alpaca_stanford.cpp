#include "chat/template.h"

namespace fastsft {
namespace {

const bool kAlpacaStanfordRegistered = ChatTemplates::instance().add(
    "alpaca_stanford", {.system = "Below is an instruction that describes a task. Write a response "
                                  "that appropriately completes the request.",
                        .after_system = "\n\n",
                        .before_user = "### Instruction:\n",
                        .after_user = "\n\n",
                        .before_assistant = "### Response:\n",
                        .stop_token = "</s>",
                        .learned_lead = 1});

}  // namespace
}  // namespace fastsft
