#include "chat/template.h"

namespace fastsft {
namespace {

const bool kQwenRegistered = ChatTemplates::instance().add(
    "qwen",
    {.system = "You are a helpful assistant.",
     .before_system = "<|im_start|>system\n",
     .after_system = "<|im_end|>\n",
     .before_user = "<|im_start|>user\n",
     .after_user = "<|im_end|>\n",
     .before_assistant = "<|im_start|>assistant\n",
     .stop_token = "<|im_end|>",
     .after_stop = "\n",
     .aliases = {"qwen-7b-chat"},
     .jinja_digests = {"f0206845c9ebc3abb4735d44f286eb81ce99238ad2accc710c6fc60e6cb8ccc8"}});

}  // namespace
}  // namespace fastsft
