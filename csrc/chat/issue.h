#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/conversation.h"

namespace fastsft {

// Anything that is wrong or notable with a record: why nothing of it is learned, or how it was
// changed.
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
  // Bad samples: records that FastChat's script cannot read (see --on_bad_sample).
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

// Returns the issue to report for a record that could not be read.
Issue issue_of(ReadError fault);

// Returns the name in reports and options, such as "ends_with_user".
const char* name_of(Issue remark);
bool is_bad_sample(Issue remark);

// An issue's consequence for the record or a part of it. Later values are worse.
enum class Outcome {
  kNoted,       // kept unchanged
  kTruncated,   // cut at the end
  kSalvaged,    // a part was removed or repaired, the rest is kept
  kUnlabelled,  // kept as a row without labels
  kDropped,     // dropped by FastChat's own rule: kept as a row without labels
  kExcluded,    // left out of the rows
  kCount
};
inline constexpr size_t kNumOutcomes = static_cast<size_t>(Outcome::kCount);
const char* name_of(Outcome action);

// An issue of a record.
struct RecordIssue {
  Issue remark = Issue::kCount;
  Outcome action = Outcome::kNoted;
  int64_t message = -1;  // index of the message; -1 for the record itself
  std::string reason;    // explanation for people; may be empty
};

// The exception type that FastChat's script would raise. kValueError comes from its JSON reader.
enum class PythonError {
  kKeyError,
  kIndexError,
  kTypeError,
  kAssertionError,
  kRuntimeError,
  kValueError
};

// An error that leaves a record without labels.
struct RecordError {
  PythonError kind = PythonError::kTypeError;
  int64_t record = 0;    // counted from 0
  std::string id;        // the record's id; may be empty
  int64_t message = -1;  // index of the message; -1 for the record itself
  std::string reason;
  bool always_stops = false;  // stops the run whatever --on_bad_sample says
  // The error's position if it is known: line counted from 1, byte counted from 0, and the first
  // characters at that position.
  std::string file{};
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt{};
  Issue remark = Issue::kCount;

  // Returns the message, such as "record 17 (id abc), message 3: role ... [line 18, byte 4711:
  // {\"from\": ...]".
  std::string what() const;
};

// Returns the exception's name in Python.
const char* name_of(PythonError kind);

// Returns the text in a form that fits into an error message: one line, valid UTF-8, at most 60
// bytes.
std::string printable(const std::string& text);

// Returns at most 40 characters from the beginning of `text`, on one line and in valid UTF-8.
std::string excerpt(std::string_view text);

// Returns the exception that FastChat's script would raise for a bad sample.
PythonError python_error(Issue remark);

}  // namespace fastsft
