#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "chat/conversation.h"

namespace fastsft {

// What is notable about a record: why it teaches nothing, or what happened to one that does.
enum class Remark {
  kEndsWithUser,
  kEmbeddedRoleTag,
  kEmbeddedEos,
  kEmbeddedUnk,
  kEmptyUser,
  kEmptyLastReply,
  kAssistantOnly,
  kCountMismatch,
  kStartsWithAssistant,
  kEmptyMiddleReply,
  kEmbeddedBos,
  kReplyTruncated,
  kNoReplyLeft,
  kSystemIgnored,
  kEmbeddedSpecial,
  kJoinedMessages,
  kNotTrained,
  kTemplateRefuses,
  kTemplateRewrites,
  kToolCall,
  kSplit,
  kSplitLost,
  kCallIds,
  kCallWithoutResult,
  kResultNotText,
  kUnclosedThoughts,
  // Bad samples: records that FastChat's script cannot read (--on_bad_sample).
  kNotJson,
  kInvalidUtf8,
  kNotAnObject,
  kNoConversations,
  kEmptyConversation,
  kBadMessage,
  kUnknownRole,
  kNotText,
  kBrokenAlternation,
  kLoneSurrogate,
  kOtherFormat,
  kBadField,
  kBadMark,
  kCount
};
inline constexpr size_t kNumRemarks = static_cast<size_t>(Remark::kCount);

// What a record is reported as that could not be read.
Remark remark_of(ReadFault fault);

// "ends_with_user" and so on, as reports and options spell them.
const char* name_of(Remark remark);
bool is_bad_sample(Remark remark);

// What became of the record, or of the part of it that a remark is about; the later, the worse.
enum class Action {
  kNoted,       // kept as it is
  kTruncated,   // cut on the right
  kSalvaged,    // a part was taken out or fixed, the rest is kept
  kUnlabelled,  // kept in its place without a label
  kDropped,     // FastChat's own drop: kept in its place without a label
  kExcluded,    // has no row
  kCount
};
inline constexpr size_t kNumActions = static_cast<size_t>(Action::kCount);
const char* name_of(Action action);

// One remark on one record.
struct Finding {
  Remark remark = Remark::kCount;
  Action action = Action::kNoted;
  int64_t message = -1;  // counted from 0; -1 when the record itself is meant
  std::string reason;    // for people; may be empty
};

}  // namespace fastsft
