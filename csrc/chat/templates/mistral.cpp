#include "chat/template.h"

namespace fastsft {
namespace {

const bool kRegistered = ChatTemplates::instance().add("mistral", {.after_system = "\n",
                                                                   .system_in_user = true,
                                                                   .before_user = "[INST] ",
                                                                   .after_user = " ",
                                                                   .before_assistant = "[/INST] ",
                                                                   .stop_token = "</s>",
                                                                   .learned_lead = 1,
                                                                   .bos = BosRule::kFirstTurn});

}  // namespace
}  // namespace fastsft
