#pragma once

#include <cstdint>
#include <vector>

#include "chat/conversation.h"
#include "chat/dialogue_builder.h"
#include "chat/role_names.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// What makes several rows of one record. Both take `conversation` and append what becomes of it to
// `result`; the notes of the pieces say which part of the record they are.

// FastChat's data/split_long_conversation.py at training time: pieces of whole turns, each at most
// `max_length` ids long by its measure (every text tokenised alone, and 6 for what is around it).
// As there, the last turn is in no piece when the piece before it is full, a turn that is too long
// by itself is a piece of its own unless it is the last, and a message after the last turn is left
// out.
//
// A system message, or the record's own system text, goes with every piece. What is not user and
// assistant in turn stays as it is: the mask policy judges it.
void split_overlong(const Tokenizer& tokenizer, const RoleNames& roles, int64_t max_length,
                    Conversation& conversation, std::vector<Conversation>& result);

// True if a message before the last has thoughts: <think> or </think> in its text, or a field.
bool has_earlier_thoughts(const Conversation& conversation);

// --train_turns each: for every reply that may be learned the record up to it, in which the replies
// before are marked as not trained; the last piece is the whole record, so that what `builder`
// finds is found. Replies after so much text that no row
// of `max_length` ids reaches them are in no piece. Records of more than 1,024 other replies, or
// with more than 64 MiB in all pieces, which are in memory together, are left out.
void split_replies(const DialogueBuilder& builder, const Tokenizer& tokenizer, int64_t max_length,
                   Conversation& conversation, std::vector<Conversation>& result);

}  // namespace fastsft
