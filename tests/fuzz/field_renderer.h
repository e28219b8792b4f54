#pragma once

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_ids.h"
#include "chat/labeller.h"
#include "chat/template_fields.h"
#include "core/json.h"
#include "core/utf8.h"
#include "fuzz_check.h"

namespace fastsft::fuzz {

// A stand-in for a model's own template. It writes all fields of a dialogue, and aborts if the
// dialogue breaks a promise of dialogue.h.
class FieldRenderer : public BatchRenderer {
 public:
  // `opens_thoughts`: the prompt of a reply ends with <think>. `knows_data`: the transcript tells
  // which text is data. `divides`: replies after a reply with thoughts need rows of their own.
  struct Ways {
    bool opens_thoughts = false, knows_data = true, divides = false;
  };

  FieldRenderer(const LabelOptions& options, Ways ways)
      : fields_(options.template_fields), ways_(ways) {}

  std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const override {
    std::vector<Transcript> transcripts;
    for (const Dialogue* dialogue : dialogues) {
      check_dialogue(*dialogue);
      transcripts.push_back(write(*dialogue));
    }
    return transcripts;
  }

 private:
  Transcript write(const Dialogue& dialogue) const {
    Transcript transcript;
    if (dialogue.messages.empty()) return transcript;
    transcript.needs_rows = ways_.divides && needs_rows(dialogue);
    if (transcript.needs_rows) return transcript;
    if (dialogue.system) add("system", *dialogue.system, transcript);
    if (!dialogue.tools.empty()) add("tools", dialogue.tools, transcript);
    if (!dialogue.variables.empty()) add("variables", dialogue.variables, transcript);
    for (const DialogueMessage& message : dialogue.messages) add_message(message, transcript);
    transcript.data_is_known = ways_.knows_data;
    if (!ways_.knows_data) {
      for (Segment& segment : transcript.segments) segment.is_data = false;
      transcript.more_data = replace_invalid_utf8(transcript.text);
    }
    return transcript;
  }

  static bool needs_rows(const Dialogue& dialogue) {
    const auto is_learned = [](const DialogueMessage& message) { return message.is_learned; };
    const auto& messages = dialogue.messages;
    return std::ranges::count_if(messages, is_learned) > 1 &&
           std::ranges::any_of(messages, [&](const DialogueMessage& message) {
             return message.role == Role::kAssistant &&
                    message.text.find("</think>") != std::string_view::npos;
           });
  }

  static void add(std::string_view name, std::string_view text, Transcript& transcript) {
    transcript.append("<|im_start|>", false, false);
    transcript.append(name, false, false);
    transcript.append("\n", false, false);
    transcript.append(text, true, false);
    transcript.append("<|im_end|>\n", false, false);
  }

  void add_message(const DialogueMessage& message, Transcript& transcript) const {
    if (message.role != Role::kAssistant) {
      add(name_of(message.role), message.text, transcript);
      return transcript.append(message.more, true, false);
    }
    transcript.append("<|im_start|>assistant\n", false, false);
    if (ways_.opens_thoughts) transcript.append("<think>\n", false, false);
    transcript.append(message.text, true, message.is_learned);
    transcript.append(message.more, true, message.is_learned);
    transcript.append("<|im_end|>", false, message.is_learned);
    transcript.append("\n", false, false);
  }

  void check_dialogue(const Dialogue& dialogue) const {
    if (dialogue.messages.empty()) return;
    check(!dialogue.is_text && dialogue.messages.back().role != Role::kSystem);
    check(dialogue.tools.empty() || fields_.tools);
    check(dialogue.variables.empty() || fields_.variables);
    if (!dialogue.tools.empty()) check_json(dialogue.tools);
    if (!dialogue.variables.empty()) check(check_json(dialogue.variables) == ValueKind::kObject);
    check(!dialogue.system || is_utf8(*dialogue.system));
    bool learns = false;
    Role before = Role::kSystem;
    for (const DialogueMessage& message : dialogue.messages) {
      check_message(message);
      learns |= message.is_learned;
      if (message.role == Role::kSystem) continue;
      check(follows(before, message.role));
      before = message.role;
    }
    check(learns);
    if (fields_.call_ids != CallIdForm::kNone) check_ids(dialogue);
  }

  static bool follows(Role before, Role role) {
    if (before == Role::kSystem) return role == Role::kUser;
    if (role == Role::kUser) return before == Role::kAssistant;
    if (role == Role::kTool) return before == Role::kAssistant || before == Role::kTool;
    return before == Role::kUser || before == Role::kTool;
  }

  void check_message(const DialogueMessage& message) const {
    check(is_utf8(message.text) && message.first <= message.last);
    check(!message.is_learned || message.role == Role::kAssistant);
    check(!message.calls_tool || (message.has_call && fields_.calls));
    if (!message.more.empty()) check(check_json(message.more) == ValueKind::kObject);
  }

  // Aborts unless every call has an id of the form that the template needs. Lists that are no lists
  // of calls are left alone, because the template refuses them.
  void check_ids(const Dialogue& dialogue) const {
    for (const DialogueMessage& message : dialogue.messages) {
      for (const std::string& id : ids_of(message)) {
        const bool is_short =
            std::ranges::count_if(id, [](char c) { return (c & 0xC0) != 0x80; }) == 9;
        check(!id.empty() && (fields_.call_ids != CallIdForm::kShort || is_short));
      }
    }
  }

  static std::vector<std::string> ids_of(const DialogueMessage& message) {
    std::vector<std::string> ids;
    if (message.role != Role::kAssistant || !message.calls_tool) return ids;
    try {
      const Json more = parse_json(message.more, "more", kMostLevels);
      const Json& calls = more.at("tool_calls");
      if (!calls.is_array()) return {};
      for (const Json& call : calls) {
        if (!call.is_object()) return {};
        ids.push_back(call.contains("id") && call["id"].is_string() ? call["id"].get<std::string>()
                                                                    : "");
      }
    } catch (const std::invalid_argument&) {  // an object has a key twice, or an id has a surrogate
      return {};
    }
    return ids;
  }

  TemplateFields fields_;
  Ways ways_;
};

}  // namespace fastsft::fuzz
