#include "chat/template.h"

namespace fastsft {
namespace {

const bool kKoalaRegistered =
    ChatTemplates::instance().add("koala", {.system = "BEGINNING OF CONVERSATION:",
                                            .after_system = " ",
                                            .before_user = "USER: ",
                                            .after_user = " ",
                                            .before_assistant = "GPT: ",
                                            .stop_token = "</s>",
                                            .learned_lead = 1,
                                            .aliases = {"koala_v1"}});

}  // namespace
}  // namespace fastsft
