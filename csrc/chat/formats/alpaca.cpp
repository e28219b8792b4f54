#include "chat/message_fields.h"
#include "chat/plain_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

// Reads {"instruction", "input", "output"}, with "history" and "system" as in LLaMA-Factory. The
// user's text is the instruction, a line break and the input.
class AlpacaReader : public FieldReader {
 public:
  using FieldReader::FieldReader;

  void begin() override {
    instruction_ = input_ = output_ = PlainField();
    history_.clear();
  }

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override {
    if (name == "system") {
      read_text(scanner, record.system);
    } else if (name == HistoryField::kName) {
      history_.read(scanner);
    } else if (PlainField* field = find(name)) {
      scanner.peek();
      field->byte = scanner.byte();
      field->value = scanner.read_value();
    } else {
      return false;
    }
    return true;
  }

  void finish(Conversation& record) override {
    record.messages = history_.take();
    const bool has_instruction = instruction_.is_set();
    if (!history_.fault().empty()) {
      refuse_fields(record, history_.fault());
    } else if (!has_instruction || !output_.is_set()) {
      const char* missing = has_instruction ? "output" : "instruction";
      refuse_fields(record, concat("no \"", missing, "\"; an Alpaca record has instruction and ",
                                   "output, and may have input, history and system"));
    } else {
      record.messages.push_back(plain_message("human", make_prompt(), "instruction"));
      record.messages.push_back(plain_message("gpt", std::move(output_), "output"));
    }
    settle_fields(record);
  }

 private:
  PlainField* find(const std::string& name) {
    return name == "instruction" ? &instruction_
           : name == "input"     ? &input_
           : name == "output"    ? &output_
                                 : nullptr;
  }

  // Joins instruction and input. Values that are not texts stay unchanged, and the mask policy
  // decides about them.
  PlainField make_prompt() {
    if (!input_.value.is_true) return std::move(instruction_);
    if (!instruction_.value.is_true || !input_.value.is_text()) return std::move(input_);
    if (instruction_.value.is_text()) instruction_.value.text += "\n" + input_.value.text;
    return std::move(instruction_);
  }

  PlainField instruction_, input_, output_;
  HistoryField history_;
};

const bool kAlpacaRegistered = DataFormats::instance().add(
    "alpaca",
    {.title = "Alpaca",
     .fields = "instruction, output and, where there are, input, history, system",
     .rank = 0,
     .names = {"instruction", "input", "output", "history", "system"},
     .match = [](const RecordSketch& record) -> std::optional<std::string> {
       const bool is_one = record.has("instruction") && record.has("output");
       return is_one && !has_standard_list(record) ? std::optional<std::string>("") : std::nullopt;
     },
     .make_reader = [](const std::string&, UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<AlpacaReader>(unused);
     }});

}  // namespace
}  // namespace fastsft
