#include "chat/issue.h"

#include <array>

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {

const char* name_of(Issue remark) {
  constexpr std::array<const char*, kNumIssues> kNames = {"ends_with_user",
                                                          "embedded_role_tag",
                                                          "embedded_eos",
                                                          "embedded_unk",
                                                          "empty_user",
                                                          "empty_last_reply",
                                                          "assistant_only",
                                                          "count_mismatch",
                                                          "starts_with_assistant",
                                                          "empty_middle_reply",
                                                          "embedded_bos",
                                                          "reply_truncated",
                                                          "no_reply_left",
                                                          "system_ignored",
                                                          "embedded_special",
                                                          "joined_messages",
                                                          "not_trained",
                                                          "template_refuses",
                                                          "template_rewrites",
                                                          "boundary_tokens",
                                                          "tool_call",
                                                          "split",
                                                          "split_lost",
                                                          "call_ids",
                                                          "call_without_result",
                                                          "result_not_text",
                                                          "unclosed_thoughts",
                                                          "not_json",
                                                          "invalid_utf8",
                                                          "not_an_object",
                                                          "no_conversations",
                                                          "empty_conversation",
                                                          "bad_message",
                                                          "unknown_role",
                                                          "not_text",
                                                          "broken_alternation",
                                                          "lone_surrogate",
                                                          "other_format",
                                                          "bad_field",
                                                          "bad_mark"};
  return kNames[static_cast<size_t>(remark)];
}

const char* name_of(Outcome action) {
  constexpr std::array<const char*, kNumOutcomes> kNames = {"noted",      "truncated", "salvaged",
                                                            "unlabelled", "dropped",   "excluded"};
  return kNames[static_cast<size_t>(action)];
}

Issue issue_of(ReadError fault) {
  switch (fault) {
    case ReadError::kInvalidUtf8:
      return Issue::kInvalidUtf8;
    case ReadError::kOtherFormat:
      return Issue::kOtherFormat;
    case ReadError::kBadField:
      return Issue::kBadField;
    default:
      return Issue::kNotJson;
  }
}

bool is_bad_sample(Issue remark) { return remark >= Issue::kNotJson; }

const char* name_of(PythonError kind) {
  switch (kind) {
    case PythonError::kKeyError:
      return "KeyError";
    case PythonError::kIndexError:
      return "IndexError";
    case PythonError::kTypeError:
      return "TypeError";
    case PythonError::kAssertionError:
      return "AssertionError";
    case PythonError::kRuntimeError:
      return "RuntimeError";
    case PythonError::kValueError:
      break;
  }
  return "ValueError";
}

std::string printable(const std::string& text) {
  constexpr size_t kMaxSize = 60;
  std::string result;
  for (size_t at = 0; at < text.size() && result.size() < kMaxSize;) {
    const size_t size = utf8_char_size(static_cast<unsigned char>(text[at]));
    const std::string part = text.substr(at, size);
    const bool shown = static_cast<unsigned char>(part[0]) >= 0x20 &&
                       find_invalid_utf8(part) == std::string_view::npos;
    result += shown ? part : "?";
    at += shown ? size : 1;
  }
  return result.size() < kMaxSize ? result : result + "...";
}

std::string excerpt(std::string_view text) {
  constexpr size_t kNumCharacters = 40;
  std::string result;
  text = text.substr(0, text.find('\n'));
  if (text.ends_with('\r')) text.remove_suffix(1);
  size_t at = 0;
  for (size_t count = 0; at < text.size() && count < kNumCharacters; ++count) {
    const std::string_view part =
        text.substr(at, utf8_char_size(static_cast<unsigned char>(text[at])));
    const bool shown = static_cast<unsigned char>(part[0]) >= 0x20 && part[0] != '\x7F' &&
                       find_invalid_utf8(part) == std::string_view::npos;
    result += shown ? part : std::string_view("?");
    at += shown ? part.size() : 1;
  }
  return result;
}

std::string RecordError::what() const {
  const std::string named = id.empty() ? "" : concat(" (id ", printable(id), ")");
  const std::string place = message < 0 ? "" : concat(", message ", message);
  const std::string text = concat("record ", record, named, place, ": ", reason);
  if (excerpt.empty()) return text;
  return concat(text, " [line ", line, ", byte ", byte, ": ", excerpt, "]");
}

PythonError python_error(Issue remark) {
  switch (remark) {
    case Issue::kNotJson:
    case Issue::kInvalidUtf8:
    case Issue::kOtherFormat:
    case Issue::kBadMark:
      return PythonError::kValueError;
    case Issue::kEmptyConversation:
      return PythonError::kIndexError;
    case Issue::kNotAnObject:
    case Issue::kNotText:
      return PythonError::kTypeError;
    case Issue::kBrokenAlternation:
      return PythonError::kAssertionError;
    case Issue::kLoneSurrogate:
      return PythonError::kRuntimeError;
    default:
      return PythonError::kKeyError;
  }
}

}  // namespace fastsft
