#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "chat/fastchat_labels.h"

namespace fastsft {

// What the report says about a sample: why it was dropped, or what is notable about an accepted
// one.
enum class Remark {
  kEndsWithUser,
  kEmbeddedRoleTag,
  kEmbeddedEos,
  kEmbeddedUnk,
  kEmptyUser,
  kEmptyLastReply,
  kAssistantOnly,
  kCountMismatch,
  // Accepted samples.
  kStartsWithAssistant,
  kEmptyMiddleReply,
  kEmbeddedBos,
  kReplyTruncated,
  kNoReplyLeft,
  kCount
};
inline constexpr size_t kNumRemarks = static_cast<size_t>(Remark::kCount);
inline constexpr size_t kNumDropReasons = static_cast<size_t>(Remark::kStartsWithAssistant);

// "ends_with_user" and so on, as reports and options spell them.
const char* name_of(Remark remark);

// The one reason of a dropped sample, found in its text.
Remark find_drop_reason(const ChatTemplate& chat_template, const Turns& turns);
// All remarks on a sample that was not dropped.
std::vector<Remark> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                               const FastchatLabels& labels);

}  // namespace fastsft
