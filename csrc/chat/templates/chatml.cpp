#include "chat/template.h"

namespace fastsft {
namespace {

const bool kRegistered =
    ChatTemplates::instance().add("chatml", {.before_system = "<|im_start|>system\n",
                                             .after_system = "<|im_end|>\n",
                                             .before_user = "<|im_start|>user\n",
                                             .after_user = "<|im_end|>\n",
                                             .before_assistant = "<|im_start|>assistant\n",
                                             .stop_token = "<|im_end|>",
                                             .after_stop = "\n"});

}  // namespace
}  // namespace fastsft
