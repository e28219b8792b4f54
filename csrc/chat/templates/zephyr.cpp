#include "chat/template.h"

namespace fastsft {
namespace {

const bool kZephyrRegistered = ChatTemplates::instance().add(
    "zephyr",
    {.before_system = "<|system|>\n",
     .after_system = "</s>\n",
     .before_user = "<|user|>\n",
     .after_user = "</s>\n",
     .before_assistant = "<|assistant|>\n",
     .stop_token = "</s>",
     .after_stop = "\n",
     .aliases = {"TinyLlama"},
     .jinja_digests = {"76f71a683134325d59f7bcef3fd29d7705edf17adb2212f4d5b5f70ec203a539"}});

}  // namespace
}  // namespace fastsft
