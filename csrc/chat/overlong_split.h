#pragma once

#include <vector>

#include "chat/conversation.h"
#include "chat/role_names.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// FastChat's data/split_long_conversation.py at training time: pieces of whole turns, each at most
// `max_length` ids long by its measure (every text tokenised alone, and 6 for what is around it).
// As there, the last turn is in no piece when the piece before it is full, a turn that is too long
// by itself is a piece of its own unless it is the last, and a message after the last turn is left
// out; the notes of the pieces say so.
//
// A system message, or the record's own system text, goes with every piece. What is not user and
// assistant in turn is returned as it is: the mask policy judges it.
std::vector<Conversation> split_overlong(const Tokenizer& tokenizer, const RoleNames& roles,
                                         int64_t max_length, Conversation conversation);

}  // namespace fastsft
