#include "chat/template.h"

namespace fastsft {
namespace {

const bool kChatmlRegistered = ChatTemplates::instance().add(
    "chatml",
    {.before_system = "<|im_start|>system\n",
     .after_system = "<|im_end|>\n",
     .before_user = "<|im_start|>user\n",
     .after_user = "<|im_end|>\n",
     .before_assistant = "<|im_start|>assistant\n",
     .stop_token = "<|im_end|>",
     .after_stop = "\n",
     .jinja_digests = {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e"}});

}  // namespace
}  // namespace fastsft
