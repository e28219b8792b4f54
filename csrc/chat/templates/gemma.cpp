#include "chat/template.h"

namespace fastsft {
namespace {

const bool kGemmaRegistered =
    ChatTemplates::instance().add("gemma", {.after_system = "\n\n",
                                            .system_in_user = true,
                                            .before_user = "<start_of_turn>user\n",
                                            .after_user = "<end_of_turn>\n",
                                            .before_assistant = "<start_of_turn>model\n",
                                            .stop_token = "<end_of_turn>",
                                            .after_stop = "\n",
                                            .bos = BosRule::kFirstTurn,
                                            .strips = true});

}  // namespace
}  // namespace fastsft
