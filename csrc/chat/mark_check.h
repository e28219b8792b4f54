#pragma once

#include <optional>

#include "chat/conversation.h"
#include "chat/remark.h"
#include "chat/role_names.h"

namespace fastsft {

// Whether marks that keep replies from being learned are followed.
enum class MarkUse { kFollowed, kRefused };

// The first mark of a record that would not be followed: one that is not understood, one that wants
// a text learned that is no reply, or with kRefused one that keeps a reply from being learned. Null
// without any. Such a record stops a run, whatever --on_bad_sample says: it would be learned
// otherwise than its author wants.
std::optional<Finding> find_bad_mark(const Conversation& record, const RoleNames& roles,
                                     MarkUse use);

}  // namespace fastsft
