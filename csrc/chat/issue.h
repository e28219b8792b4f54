#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/conversation.h"

namespace fastsft {

// Anything notable about a record: why it teaches nothing, or how it was changed.
enum class Issue {
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
  kBoundaryTokens,
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
inline constexpr size_t kNumIssues = static_cast<size_t>(Issue::kCount);

// The issue that is reported for a record that could not be read.
Issue issue_of(ReadError fault);

// "ends_with_user" and so on, as reports and options spell them.
const char* name_of(Issue remark);
bool is_bad_sample(Issue remark);

// Consequence of an issue for the record or a part of it; later values are worse.
enum class Outcome {
  kNoted,       // kept as it is
  kTruncated,   // cut on the right
  kSalvaged,    // a part was taken out or fixed, the rest is kept
  kUnlabelled,  // kept in its place without a label
  kDropped,     // FastChat's own drop: kept in its place without a label
  kExcluded,    // has no row
  kCount
};
inline constexpr size_t kNumOutcomes = static_cast<size_t>(Outcome::kCount);
const char* name_of(Outcome action);

// One issue of one record.
struct RecordIssue {
  Issue remark = Issue::kCount;
  Outcome action = Outcome::kNoted;
  int64_t message = -1;  // counted from 0; -1 when the record itself is meant
  std::string reason;    // for people; may be empty
};

// Type of the exception that FastChat's script would raise; kValueError for its JSON reader.
enum class PythonError {
  kKeyError,
  kIndexError,
  kTypeError,
  kAssertionError,
  kRuntimeError,
  kValueError
};

// An error that keeps a record from being labelled.
struct RecordError {
  PythonError kind = PythonError::kTypeError;
  int64_t record = 0;    // counted from 0
  std::string id;        // of the record, may be empty
  int64_t message = -1;  // counted from 0; -1 when the record itself is at fault
  std::string reason;
  bool always_stops = false;  // whatever --on_bad_sample says
  // Its position, if it is known: line from 1, byte from 0, the first characters there.
  std::string file{};
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt{};
  Issue remark = Issue::kCount;

  // "record 17 (id abc), message 3: role ... [line 18, byte 4711: {\"from\": ...]"
  std::string what() const;
};

// The exception's name in Python.
const char* name_of(PythonError kind);

// Makes text fit for a message: one line, valid UTF-8, at most 60 bytes.
std::string printable(const std::string& text);

// First 40 characters of data, on one line, valid UTF-8.
std::string excerpt(std::string_view text);

// The exception that FastChat's script would raise for a bad sample.
PythonError python_error(Issue remark);

}  // namespace fastsft
