#include "chat/template.h"

namespace fastsft {
namespace {

const bool kPhiRegistered =
    ChatTemplates::instance().add("phi", {.before_system = "<|system|>\n",
                                          .after_system = "<|end|>\n",
                                          .before_user = "<|user|>\n",
                                          .after_user = "<|end|>\n",
                                          .before_assistant = "<|assistant|>\n",
                                          .stop_token = "<|end|>",
                                          .after_stop = "\n",
                                          .aliases = {"phi-3"}});

}  // namespace
}  // namespace fastsft
