#include "chat/template.h"

namespace fastsft {
namespace {

const bool kRegistered =
    ChatTemplates::instance().add("zephyr", {.before_system = "<|system|>\n",
                                             .after_system = "</s>\n",
                                             .before_user = "<|user|>\n",
                                             .after_user = "</s>\n",
                                             .before_assistant = "<|assistant|>\n",
                                             .stop_token = "</s>",
                                             .after_stop = "\n",
                                             .aliases = {"TinyLlama"}});

}  // namespace
}  // namespace fastsft
