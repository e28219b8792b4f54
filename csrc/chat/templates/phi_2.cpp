#include "chat/template.h"

namespace fastsft {
namespace {

const bool kPhi2Registered = ChatTemplates::instance().add("phi-2", {.after_system = "\n",
                                                                     .before_user = "Instruct: ",
                                                                     .after_user = "\n",
                                                                     .before_assistant = "Output: ",
                                                                     .stop_token = "<|endoftext|>",
                                                                     .after_stop = "\n",
                                                                     .learned_lead = 1});

}  // namespace
}  // namespace fastsft
