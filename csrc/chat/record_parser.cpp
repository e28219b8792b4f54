#include "chat/record_parser.h"

#include <algorithm>

#include "chat/data_fault.h"
#include "core/error.h"

namespace fastsft {
namespace {

// What a record without a conversation has instead.
std::string name_fields(const RecordSketch& record, bool is_first) {
  constexpr size_t kMost = 8;
  std::string names;
  for (size_t i = 0; i < record.fields.size() && i < kMost; ++i) {
    names += concat(names.empty() ? "" : ", ", printable(record.fields[i].name));
  }
  if (record.fields.size() > kMost) names += ", ...";
  if (record.has("chosen") && record.has("rejected")) {
    return names + ": preference data, which supervised training cannot use as it is";
  }
  const auto list = std::ranges::find_if(record.fields, [](const FieldSketch& field) {
    return field.lists_objects && !field.messages;
  });
  if (is_first && list != record.fields.end()) {
    names += concat("; if the records are in ", printable(list->name),
                    ", write that list alone into the file");
  }
  return names;
}

// The value that comes next, as it is written; it is not consumed.
std::string peek_raw(JsonScanner scanner) { return std::string(scanner.read_raw()); }

}  // namespace

RecordParser::RecordParser(FormatChoice choice)
    : choice_(std::move(choice)), reader_(choice_.format().make_reader(choice_.column, unused_)) {}

void RecordParser::parse(JsonScanner& scanner, Conversation& record) {
  const int64_t number = record.number, line = record.line;
  record = Conversation();
  record.number = number;
  record.line = line;
  record.messages_kind = ValueKind::kMissing;
  record.kind = scanner.peek();
  record.byte = scanner.byte();
  if (record.kind != ValueKind::kObject) return scanner.skip();
  JsonScanner start = scanner;
  std::string tools;
  reader_->begin();
  scanner.enter_object();
  while (scanner.next_key(key_)) {
    if (key_ == "id" && scanner.peek() == ValueKind::kString) {
      scanner.read_string(record.id);
    } else if (key_ == "id") {
      record.id = std::string(scanner.read_raw());
    } else if (key_ == "train") {
      record.train = scanner.peek();
      scanner.skip();
    } else if (!reader_->read(key_, scanner, record)) {
      const ValueKind kind = scanner.peek();
      const bool is_list = kind == ValueKind::kArray || kind == ValueKind::kString;
      const bool is_odd = key_ == "tools" && !is_list && kind != ValueKind::kNull;
      if (key_ == "tools") tools = is_list ? peek_raw(scanner) : "";
      unused_.skip("", is_odd ? "tools that are no list" : key_, scanner);
    }
  }
  reader_->finish(record);
  if (!tools.empty()) own_notes(record).tools = std::move(tools);
  const bool has_list = record.messages_kind == ValueKind::kArray;
  if (!has_list || record.read_fault != ReadFault::kNone) explain_missing(start, record);
}

void RecordParser::explain_missing(JsonScanner& record_start, Conversation& record) const {
  const RecordSketch sketch = sketch_record(record_start);
  const auto other = match_format(sketch, kAutoFormat);
  if (other && *other != choice_) {
    record.read_fault = ReadFault::kOtherFormat;
    record.read_reason =
        concat("expected ", choice_.describe(), " as in the rest of its file, got ",
               other->describe(), "; divide the file by format, or name its format: --data_format");
    return;
  }
  if (record.messages_kind != ValueKind::kMissing || sketch.fields.empty()) return;
  own_notes(record).hint = concat("; its fields are ", name_fields(sketch, record.number == 0));
}

}  // namespace fastsft
