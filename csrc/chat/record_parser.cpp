#include "chat/record_parser.h"

#include "chat/format_hints.h"
#include "chat/plain_fields.h"
#include "chat/reply_fields.h"
#include "chat/role_names.h"
#include "chat/template_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr std::string_view kVariables = "chat_template_kwargs";

// Returns the next value's JSON and does not consume the value.
std::string peek_raw(JsonScanner scanner) { return std::string(scanner.read_raw()); }

// Returns true for a field with variables of the model's own chat template.
bool is_variable(std::string_view name) { return name == kVariables || name == "enable_thinking"; }

// Lists the names in an object that have a value other than null.
void list_object(JsonScanner scanner, UnusedFields& unused) {
  if (scanner.peek() != ValueKind::kObject) return;
  std::string name;
  scanner.enter_object();
  while (scanner.next_key(name)) {
    unused.skip(std::string(TemplateFields::kVariable), name, scanner);
  }
}

// Lists the names of variables, in an object or in its JSON text. A text that is no JSON is refused
// where the template gets it.
void list_variables(JsonScanner scanner, UnusedFields& unused) {
  std::string text;
  if (scanner.peek() == ValueKind::kString) {
    scanner.read_string(text);
    try {
      return list_object(JsonScanner(text), unused);
    } catch (const JsonFault&) {
      return;
    }
  }
  list_object(scanner, unused);
}

void read_id(JsonScanner& scanner, Conversation& record) {
  const ValueKind kind = scanner.peek();
  record.id.clear();
  record.id_is_number = false;
  if (kind == ValueKind::kString) return scanner.read_string(record.id);
  if (kind == ValueKind::kNull) return scanner.skip();
  record.id = std::string(scanner.read_raw());
  // false for NaN and infinity
  const bool ends_with_digit = record.id.back() >= '0' && record.id.back() <= '9';
  record.id_is_number = kind == ValueKind::kNumber && ends_with_digit;
}

}  // namespace

RecordParser::RecordParser(FormatChoice choice, bool is_named)
    : choice_(std::move(choice)),
      is_named_(is_named),
      reader_(choice_.format().make_reader(choice_.column, unused_)) {}

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
  std::string tools, variables;
  bool has_other_reply = false, has_preference = false;
  reader_->begin();
  marks_.begin(MarkReader::Of::kRecord);
  scanner.enter_object();
  while (scanner.next_key(key_)) {
    if (key_ == "id") {
      read_id(scanner, record);
    } else if (!reader_->read(key_, scanner, record) &&
               (key_ == "tools" || is_variable(key_) || !marks_.read(key_, scanner))) {
      const ValueKind kind = scanner.peek();
      if (is_variable(key_) && kind != ValueKind::kNull) {
        if (key_ == kVariables) list_variables(scanner, unused_);
        variables += concat(variables.empty() ? "{" : ", ", "\"", key_, "\": ", peek_raw(scanner));
      }
      const bool is_list = kind == ValueKind::kArray || kind == ValueKind::kString;
      const bool is_odd = key_ == "tools" && !is_list && kind != ValueKind::kNull;
      if (key_ == "tools") tools = is_list ? peek_raw(scanner) : "";
      has_other_reply |= kind != ValueKind::kNull && is_reply_name(key_);
      has_preference |= is_of_preference(key_, kind);
      unused_.skip("", is_odd ? "tools that are no list" : key_, scanner);
    }
  }
  reader_->finish(record);
  record.mark = marks_.take();
  record.train = train_of(record.mark.get());
  if (!tools.empty()) own_notes(record).tools = std::move(tools);
  if (!variables.empty()) own_notes(record).variables = variables + "}";
  const bool has_list = record.messages_kind == ValueKind::kArray;
  if (!has_list || record.read_fault != ReadError::kNone) {
    explain_missing(start, record);
  } else if (!is_named_ && (has_preference || (has_other_reply && may_hold_reply(record)) ||
                            has_odd_prompt(record))) {
    refuse_doubtful(start, record);
  }
}

// Returns true if an unused field may be the reply to the messages.
bool RecordParser::may_hold_reply(const Conversation& record) const {
  static const RoleNames roles(true, {});
  if (record.shape == RecordShape::kFields) {
    return choice_.name == "prompt_completion" && !choice_.column.empty();
  }
  if (record.messages.empty() || is_prompt_name(choice_.column)) return true;
  const auto role = roles.find(record.messages.back().from.text);
  return role == Role::kUser || role == Role::kTool;
}

// Returns true if the list that the file's format reads as a prompt may be more than a prompt.
bool RecordParser::has_odd_prompt(const Conversation& record) const {
  static const RoleNames roles(true, {});
  if (choice_.name != "prompt_completion" || choice_.column.empty()) return false;
  const bool may_reply = is_prompt_name(ReplyFields::of_column(choice_.column).prompt);
  std::optional<Role> last = Role::kUser;
  for (const Message& message : record.messages) {
    if (!message.is_context) continue;
    last = roles.find(message.from.text);
    if (last == Role::kAssistant && !may_reply) return true;
  }
  return last != Role::kUser && last != Role::kTool;
}

// Refuses a record that its format can read, if training on it may not be what the
// author wants.
void RecordParser::refuse_doubtful(JsonScanner& record_start, Conversation& record) const {
  JsonScanner start = record_start;
  const RecordSketch sketch = sketch_record(start);
  record.read_reason = refuse_preference(sketch);
  if (record.read_reason.empty() && is_doubtful_prompt(sketch)) {
    return refuse_fields(record, refuse_replies(sketch));
  }
  if (record.read_reason.empty()) record.read_reason = refuse_replies(sketch);
  if (!record.read_reason.empty()) {
    record.read_fault = ReadError::kOtherFormat;
  } else if (find_reply_fields(sketch) || has_odd_prompt(record)) {
    explain_missing(record_start, record);
  }
}

// Returns true if the record is a prompt without a reply, in its file's format.
bool RecordParser::lacks_reply(const RecordSketch& sketch) const {
  if (choice_.name != "prompt_completion" || choice_.column.empty()) return false;
  const FieldSketch* prompt = sketch.find(ReplyFields::of_column(choice_.column).prompt);
  return prompt != nullptr && prompt->awaits_reply;
}

void RecordParser::explain_missing(JsonScanner& record_start, Conversation& record) const {
  JsonScanner start = record_start;
  const RecordSketch sketch = sketch_record(start);
  const auto other = match_format(sketch, kAutoFormat);
  if (other && *other != choice_ && !lacks_reply(sketch)) {
    record.read_fault = ReadError::kOtherFormat;
    const std::string expected = concat("expected ", choice_.describe());
    record.read_reason =
        is_named_ ? concat(expected, ", which --data_format names, got ", other->describe(),
                           "; name that one, --data_format ", other->name,
                           ", or leave the flag out: each file's format is found")
                  : concat(expected, " as in the rest of its file, got ", other->describe(),
                           "; divide the file by format, or name its format: --data_format ",
                           choice_.name);
    return;
  }
  if (record.messages_kind != ValueKind::kMissing || sketch.fields.empty()) return;
  own_notes(record).hint =
      concat("; its fields are ", describe_fields(sketch, record_start, record.number == 0));
}

}  // namespace fastsft
