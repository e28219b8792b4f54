#include "chat/template.h"

namespace fastsft {
namespace {

const bool kLlama3Registered = ChatTemplates::instance().add(
    "llama-3",
    {.before_system = "<|start_header_id|>system<|end_header_id|>\n\n",
     .after_system = "<|eot_id|>",
     .before_user = "<|start_header_id|>user<|end_header_id|>\n\n",
     .after_user = "<|eot_id|>",
     .before_assistant = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .stop_token = "<|eot_id|>",
     .bos = BosRule::kFirstTurn,
     .strips = true,
     .jinja_digests = {"4f46ecd43418f216df8c26936c60e5d04bcc81db47db5d86fbe889f64212dd4c"}});

}  // namespace
}  // namespace fastsft
