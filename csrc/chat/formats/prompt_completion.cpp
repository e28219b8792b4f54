#include <mutex>
#include <set>

#include "chat/message_fields.h"
#include "chat/plain_fields.h"
#include "chat/reply_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

// Returns `name` with static lifetime, because messages may outlive their reader.
const char* keep_name(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::scoped_lock lock(mutex);
  return names.insert(name).first->c_str();
}

// Reads {"prompt", "completion"}, which are texts or lists of messages, or the same fields under
// other names. Only replies in the completion are learned.
class PromptCompletionReader : public FieldReader {
 public:
  PromptCompletionReader(const ReplyFields& names, UnusedFields& unused)
      : FieldReader(unused),
        prompt_name_(keep_name(names.prompt)),
        completion_name_(keep_name(names.reply)),
        messages_(unused) {}

  void begin() override { prompt_ = completion_ = Part(); }

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override {
    if (name == "system") {
      read_text(scanner, record.system);
      return true;
    }
    const bool is_prompt = name == prompt_name_;
    if (!is_prompt && name != completion_name_) return false;
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
    for (const auto& [part, name] :
         {std::pair(&prompt_, prompt_name_), {&completion_, completion_name_}}) {
      if (part->text.is_set()) continue;
      refuse_fields(record, concat("no \"", name, "\"; expected ", prompt_name_, " and ",
                                   completion_name_, ", texts or lists of messages"));
    }
    if (record.read_fault == ReadError::kNone) {
      append(record, prompt_, "human", prompt_name_);
      append(record, completion_, "gpt", completion_name_);
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

  const char* prompt_name_;
  const char* completion_name_;
  MessageReader messages_;
  Part prompt_, completion_;
};

bool has_own_names(const RecordSketch& record) {
  return record.has("prompt") && record.has("completion") && !has_standard_list(record);
}

const bool kPromptCompletionRegistered = DataFormats::instance().add(
    "prompt_completion",
    {.title = "prompt/completion",
     .fields = "prompt and completion, texts or lists of messages; a list of messages that ends "
               "with the user, and completion, response, output, answer or target; with system "
               "where there is one",
     .rank = 0,
     .names = {"prompt", "completion", "response", "output", "answer", "target", "system"},
     .match = [](const RecordSketch& record) -> std::optional<std::string> {
       if (has_own_names(record)) return "";
       if (const auto found = find_reply_fields(record)) return found->column();
       return std::nullopt;
     },
     .is_doubtful =
         [](const RecordSketch& record) {
           return !has_own_names(record) && is_doubtful_prompt(record);
         },
     .make_reader = [](const std::string& column,
                       UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<PromptCompletionReader>(ReplyFields::of_column(column), unused);
     }});

}  // namespace
}  // namespace fastsft
