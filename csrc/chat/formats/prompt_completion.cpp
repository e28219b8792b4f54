#include "chat/message_fields.h"
#include "chat/plain_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

// {"prompt", "completion"}, texts or lists of messages. Only replies of the completion are learned.
class PromptCompletionReader : public FieldReader {
 public:
  explicit PromptCompletionReader(UnusedFields& unused) : FieldReader(unused), messages_(unused) {}

  void begin() override { prompt_ = completion_ = Part(); }

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override {
    if (name == "system") {
      read_text(scanner, record.system);
      return true;
    }
    const bool is_prompt = name == "prompt";
    if (!is_prompt && name != "completion") return false;
    Part& part = is_prompt ? prompt_ : completion_;
    part = Part();
    if (scanner.peek() == ValueKind::kArray) {
      messages_.read_list(scanner, part.list);
      part.text.value.kind = ValueKind::kArray;
    } else {
      part.text.byte = scanner.byte();
      part.text.value = scanner.read_value();
    }
    return true;
  }

  void finish(Conversation& record) override {
    record.messages.clear();
    for (const auto& [part, name] : {std::pair(&prompt_, "prompt"), {&completion_, "completion"}}) {
      if (part->text.is_set()) continue;
      refuse_fields(record, concat("no \"", name, "\"; expected prompt and completion, texts or ",
                                   "lists of messages"));
    }
    if (record.read_fault == ReadFault::kNone) {
      append(record, prompt_, "human", "prompt");
      append(record, completion_, "gpt", "completion");
    }
    settle_fields(record);
  }

 private:
  struct Part {
    PlainField text;
    Conversation list;
  };

  static void append(Conversation& record, Part& part, const char* role, const char* name) {
    if (part.text.value.kind != ValueKind::kArray) {
      record.messages.push_back(plain_message(role, std::move(part.text), name));
      return;
    }
    const bool is_prompt = role == std::string("human");
    for (Message& message : part.list.messages) {
      message.field = name;
      message.is_context = is_prompt;
      if (is_prompt) message.train = ValueKind::kFalse;
      record.messages.push_back(std::move(message));
    }
  }

  MessageReader messages_;
  Part prompt_, completion_;
};

const bool kPromptCompletionRegistered = DataFormats::instance().add(
    "prompt_completion",
    {.title = "prompt/completion",
     .fields = "prompt and completion, texts or lists of messages, and, where there is, system",
     .rank = 0,
     .names = {"prompt", "completion", "system"},
     .match = [](const RecordSketch& record) -> std::optional<std::string> {
       const bool is_one = record.has("prompt") && record.has("completion");
       return is_one && !has_standard_list(record) ? std::optional<std::string>("") : std::nullopt;
     },
     .make_reader = [](const std::string&, UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<PromptCompletionReader>(unused);
     }});

}  // namespace
}  // namespace fastsft
