#include "chat/remark.h"

#include <array>

namespace fastsft {

const char* name_of(Remark remark) {
  constexpr std::array<const char*, kNumRemarks> kNames = {
      "ends_with_user",     "embedded_role_tag",  "embedded_eos",
      "embedded_unk",       "empty_user",         "empty_last_reply",
      "assistant_only",     "count_mismatch",     "starts_with_assistant",
      "empty_middle_reply", "embedded_bos",       "reply_truncated",
      "no_reply_left",      "system_ignored",     "embedded_special",
      "joined_messages",    "not_trained",        "template_refuses",
      "template_rewrites",  "tool_call",          "split",
      "split_lost",         "call_ids",           "call_without_result",
      "result_not_text",    "unclosed_thoughts",  "not_json",
      "invalid_utf8",       "not_an_object",      "no_conversations",
      "empty_conversation", "bad_message",        "unknown_role",
      "not_text",           "broken_alternation", "lone_surrogate",
      "other_format",       "bad_field",          "bad_mark"};
  return kNames[static_cast<size_t>(remark)];
}

const char* name_of(Action action) {
  constexpr std::array<const char*, kNumActions> kNames = {"noted",      "truncated", "salvaged",
                                                           "unlabelled", "dropped",   "excluded"};
  return kNames[static_cast<size_t>(action)];
}

Remark remark_of(ReadFault fault) {
  switch (fault) {
    case ReadFault::kInvalidUtf8:
      return Remark::kInvalidUtf8;
    case ReadFault::kOtherFormat:
      return Remark::kOtherFormat;
    case ReadFault::kBadField:
      return Remark::kBadField;
    default:
      return Remark::kNotJson;
  }
}

bool is_bad_sample(Remark remark) { return remark >= Remark::kNotJson; }

}  // namespace fastsft
