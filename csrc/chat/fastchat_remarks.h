#pragma once

#include <vector>

#include "chat/fastchat_check.h"
#include "chat/fastchat_labels.h"
#include "chat/remark.h"

namespace fastsft {

// The one reason of a sample that FastChat drops, found in its text.
Remark find_drop_reason(const ChatTemplate& chat_template, const Turns& turns);
// All remarks on a sample that was not dropped.
std::vector<Finding> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                                const Labels& labels);

}  // namespace fastsft
