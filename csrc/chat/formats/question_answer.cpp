#include <array>

#include "chat/message_fields.h"
#include "chat/plain_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

struct Pair {
  const char* title;
  const char* ask;
  const char* reply;
  const char* more = "context";  // another name of the context field
};
constexpr std::array<Pair, 4> kPairs = {
    {{"question/answer", "question", "answer"},
     {"instruction/response", "instruction", "response", "input"},
     {"query/response", "query", "response"},
     {"prompt/response", "prompt", "response"}}};

const Pair& pair_of(const std::string& title) {
  for (const Pair& pair : kPairs) {
    if (title == pair.title) return pair;
  }
  return kPairs.front();
}

// Reads a user's turn and a reply from a pair of fields. If there is a "context", the user's turn
// ends with a line break and the context. If "history" is a list of pairs, it holds the earlier
// turns.
class QuestionAnswerReader : public FieldReader {
 public:
  QuestionAnswerReader(const Pair& pair, UnusedFields& unused) : FieldReader(unused), pair_(pair) {}

  void begin() override {
    ask_ = context_ = more_ = reply_ = PlainField();
    history_.clear();
  }

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override {
    if (name == "system") {
      read_text(scanner, record.system);
      return true;
    }
    if (name == HistoryField::kName) {
      history_.read(scanner);
      return true;
    }
    PlainField* field = name == pair_.ask     ? &ask_
                        : name == pair_.reply ? &reply_
                        : name == "context"   ? &context_
                        : name == pair_.more  ? &more_
                                              : nullptr;
    if (field == nullptr) return false;
    scanner.peek();
    field->byte = scanner.byte();
    field->value = scanner.read_value();
    return true;
  }

  void finish(Conversation& record) override {
    if (!history_.fault().empty()) leave_out_history();
    record.messages = history_.take();
    const char* context = more_.value.is_true ? pair_.more : "context";
    if (more_.value.is_true && context_.value.is_true) {
      refuse_fields(record, concat("\"context\" and \"", pair_.more, "\" both have a value; ",
                                   "expected one of them: join them under one name"));
    } else if (!ask_.is_set() || !reply_.is_set()) {
      const char* missing = ask_.is_set() ? pair_.reply : pair_.ask;
      refuse_fields(record,
                    concat("no \"", missing, "\"; expected ", pair_.ask, " and ", pair_.reply,
                           ", and where there are, ", pair_.more, ", history and system"));
    } else {
      if (more_.value.is_true) context_ = std::move(more_);
      const bool is_context = context_.value.is_true && !context_.value.is_text();
      const char* name = is_context ? context : pair_.ask;
      record.messages.push_back(plain_message("human", make_prompt(), name));
      record.messages.push_back(plain_message("gpt", std::move(reply_), pair_.reply));
    }
    settle_fields(record);
  }

 private:
  // Reports the history as unused. Unlike Alpaca's, the history of a question need not be a list of
  // pairs.
  void leave_out_history() {
    unused_.add(HistoryField::kName);
    history_.clear();
  }

  // Returns the question, followed by the context if both are texts. A context that is no text is
  // returned in place of the question, so that the mask policy decides about it.
  PlainField make_prompt() {
    if (!context_.value.is_true) return std::move(ask_);
    if (!context_.value.is_text()) return std::move(context_);
    if (ask_.value.is_text()) ask_.value.text += "\n" + context_.value.text;
    return std::move(ask_);
  }

  const Pair& pair_;
  PlainField ask_, context_, more_, reply_;
  HistoryField history_;
};

const bool kQuestionAnswerRegistered = DataFormats::instance().add(
    "question_answer",
    {.title = "question and answer",
     .fields = "question and answer; instruction, query or prompt and response; with context "
               "(next to instruction also input), history and system where there are",
     .rank = 1,
     .names = {"question", "answer", "instruction", "query", "prompt", "response", "context",
               "input", "history", "system"},
     .match = [](const RecordSketch& record) -> std::optional<std::string> {
       if (has_standard_list(record)) return std::nullopt;
       for (const Pair& pair : kPairs) {
         if (record.has(pair.ask) && record.has(pair.reply)) return pair.title;
       }
       return std::nullopt;
     },
     .make_reader = [](const std::string& title,
                       UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<QuestionAnswerReader>(pair_of(title), unused);
     }});

}  // namespace
}  // namespace fastsft
