#pragma once

#include <cstdint>
#include <vector>

#include "chat/conversation.h"
#include "chat/dialogue_builder.h"
#include "chat/role_names.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Functions that make several rows of one record. Both consume `conversation` and append its pieces
// to `result`. A piece's notes say which part the piece is.

// Splits a conversation into pieces with whole turns, as FastChat's data/split_long_conversation.py
// does. Each piece has at most `max_length` ids by FastChat's count: every text is tokenised alone
// and counts 6 more ids for role and separators.
// Like FastChat, the function loses some text: the last turn if the piece before it is full, and a
// message after the last turn. A turn that is too long by itself becomes its own piece unless it is
// the last.
//
// A system message, or the record's own system text, is in every piece. A conversation in which
// user and assistant do not alternate is not split; the mask policy decides about it.
void split_overlong(const Tokenizer& tokenizer, const RoleNames& roles, int64_t max_length,
                    Conversation& conversation, std::vector<Conversation>& result);

// True if a message before the last has thoughts: <think> or </think> in its text, or a field for
// thoughts.
bool has_earlier_thoughts(const Conversation& conversation);

// Makes a piece for every reply that may be learned (--train_turns each): the record up to the
// reply, with the earlier replies marked as not learned. The last piece is the whole record, so
// that `builder` still finds every issue.
// Replies beyond any row with `max_length` ids are in no piece. A record is left out if it has more
// than 1,024 replies before the last, or if its pieces, which are in memory together, have more
// than 64 MiB.
void split_replies(const DialogueBuilder& builder, const Tokenizer& tokenizer, int64_t max_length,
                   Conversation& conversation, std::vector<Conversation>& result);

}  // namespace fastsft
