#include "chat/data_format.h"
#include "chat/format_hints.h"
#include "chat/plain_fields.h"

namespace fastsft {
namespace {

// Reads {"text"}: a text that is not a conversation, all of which is learned.
class TextReader : public FieldReader {
 public:
  using FieldReader::FieldReader;

  void begin() override { text_ = PlainField(); }

  bool read(const std::string& name, JsonScanner& scanner, Conversation&) override {
    if (name != "text") return false;
    scanner.peek();
    text_.byte = scanner.byte();
    text_.value = scanner.read_value();
    return true;
  }

  void finish(Conversation& record) override {
    record.messages.clear();
    if (text_.is_set()) {
      record.messages.push_back(plain_message("gpt", std::move(text_), "text"));
    } else {
      refuse_fields(record, "no \"text\"");
    }
    settle_fields(record, RecordShape::kText);
  }

 private:
  PlainField text_;
};

const bool kTextRegistered = DataFormats::instance().add(
    "text",
    {.title = "text",
     .fields = "text, which is learned as it is, without a chat template",
     .rank = 2,
     .names = {"text"},
     .match = [](const RecordSketch& record) -> std::optional<std::string> {
       const FieldSketch* text = record.find("text");
       const bool is_one = text != nullptr && text->kind == ValueKind::kString;
       return is_one && !is_tree_row(record) ? std::optional<std::string>("") : std::nullopt;
     },
     .make_reader = [](const std::string&, UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<TextReader>(unused);
     }});

}  // namespace
}  // namespace fastsft
