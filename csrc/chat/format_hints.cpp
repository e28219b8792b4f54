#include "chat/format_hints.h"

#include <algorithm>
#include <initializer_list>

#include "chat/issue.h"
#include "core/error.h"

namespace fastsft {
namespace {

using Names = std::initializer_list<const char*>;
constexpr Names kAsks = {"question", "query", "instruction", "prompt", "input",
                         "problem",  "user",  "human",       "q"};
constexpr Names kReplies = {"response", "answer",    "output", "completion", "target", "solution",
                            "reply",    "assistant", "gpt",    "bot",        "a"};

constexpr const char* kPreference =
    "preference data, which supervised training cannot use as it is; write the chosen reply as the "
    "last of the messages, or as completion of a prompt, and leave both fields out";

std::string quoted(const std::string& name) { return concat("\"", printable(name), "\""); }

// Returns the first field of `names` that is a text in the record; null if there is none.
const FieldSketch* find_text(const RecordSketch& record, Names names) {
  for (const char* name : names) {
    const FieldSketch* field = record.find(name);
    if (field != nullptr && field->kind == ValueKind::kString) return field;
  }
  return nullptr;
}

std::string list_names(const RecordSketch& record) {
  constexpr size_t kMost = 8;
  std::string names;
  for (size_t i = 0; i < record.fields.size() && i < kMost; ++i) {
    names += concat(names.empty() ? "" : ", ", printable(record.fields[i].name));
  }
  return record.fields.size() > kMost ? names + ", ..." : names;
}

// Returns the properties of the object `name` in the record, or of the first item of the list
// `name`.
RecordSketch sketch_inside(JsonScanner scanner, const std::string& name) {
  RecordSketch inside;
  std::string key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    const ValueKind kind = key == name ? scanner.peek() : ValueKind::kMissing;
    if (kind == ValueKind::kObject) {
      inside = sketch_record(scanner);
    } else if (kind == ValueKind::kArray) {
      scanner.enter_array();
      if (scanner.next_item()) inside = sketch_record(scanner);
      while (scanner.next_item()) scanner.skip();
    } else {
      scanner.skip();
    }
  }
  return inside;
}

constexpr const char* kAsTurns =
    "{\"role\": \"user\", \"content\": ...} and {\"role\": \"assistant\", \"content\": ...}";

// Explains a list of objects that are not messages.
std::string explain_list(const std::string& name, const RecordSketch& item, bool is_first) {
  if (find_text(item, kAsks) != nullptr && find_text(item, kReplies) != nullptr &&
      !match_format(item, kAutoFormat)) {
    return concat("; ", quoted(name), " is a list of objects with ", list_names(item),
                  ": write each as two messages, ", kAsTurns, ", and the list as \"messages\"");
  }
  if (find_text(item, {"role", "from", "speaker", "author"}) != nullptr) {
    return concat("; if ", quoted(name), " has the messages, name it \"messages\", and write each ",
                  "as ", kAsTurns, ", not with ", list_names(item));
  }
  if (!is_first) return {};
  return concat("; if the records are in ", printable(name),
                ", write that list alone into the file");
}

bool is_boolean(ValueKind kind) { return kind == ValueKind::kTrue || kind == ValueKind::kFalse; }

bool has_two_texts(const RecordSketch& record) {
  return std::ranges::count_if(record.fields, [](const FieldSketch& field) {
           return field.kind == ValueKind::kString;
         }) >= 2;
}

// Explains an object in a record.
std::string explain_object(const RecordSketch& record, const std::string& name,
                           const RecordSketch& inside, bool is_first) {
  const bool has_others = record.fields.size() > 1;
  if (match_format(inside, kAutoFormat)) {
    const bool is_alone = std::ranges::all_of(
        record.fields, [](const FieldSketch& field) { return field.kind == ValueKind::kObject; });
    return is_first && is_alone && has_others
               ? "; if each of them is a record, write a list of their values"
               : concat("; if the record is ", quoted(name), ", write its value alone");
  }
  if (!has_others && has_two_texts(inside)) {
    return concat("; if one text of ", quoted(name), " is asked and one is the reply, name them ",
                  "\"prompt\" and \"completion\", and leave ", quoted(name), " out");
  }
  return !has_others && is_first ? concat("; if the records are inside of ", printable(name),
                                          ", write their list alone into the file")
                                 : std::string();
}

// Explains fields of which none is a list of objects.
std::string explain_fields(const RecordSketch& record, const JsonScanner& start, bool is_first) {
  for (const FieldSketch& field : record.fields) {
    if (field.kind != ValueKind::kObject) continue;
    const RecordSketch inside = sketch_inside(start, field.name);
    const std::string text = explain_object(record, field.name, inside, is_first);
    if (!text.empty()) return text;
  }
  if (has_two_texts(record)) {
    return "; if one of them is asked and one is the reply, name them \"prompt\" and "
           "\"completion\"";
  }
  const auto list = std::ranges::find_if(record.fields, [](const FieldSketch& field) {
    return field.kind == ValueKind::kArray && !field.is_nothing;
  });
  if (list == record.fields.end()) return {};
  return concat("; if ", quoted(list->name), " has the turns of a conversation, write them as ",
                "\"messages\", in turn ", kAsTurns);
}

}  // namespace

bool is_tree_row(const RecordSketch& record) {
  const auto names = [&](const char* name) {
    return std::ranges::any_of(record.fields,
                               [&](const FieldSketch& field) { return field.name == name; });
  };
  return names("text") && names("role") && (names("parent_id") || names("message_tree_id"));
}

std::string describe_fields(const RecordSketch& record, JsonScanner record_start, bool is_first) {
  std::string fields = list_names(record);
  if (record.has("chosen") && record.has("rejected")) {
    return concat(fields, ": ", kPreference);
  }
  if (is_tree_row(record)) {
    return fields + ": one message of a tree; make conversations of the trees, each path from a " +
           "root to a leaf a record with \"messages\"";
  }
  if (record.has("input_ids")) {
    return fields + ": ids of tokens, which are made here; give the texts that they were made of";
  }
  const FieldSketch* text = record.find("text");
  if (text != nullptr && (text->kind == ValueKind::kNumber || is_boolean(text->kind))) {
    return concat(fields, "; \"text\" is ", describe(text->kind),
                  ": a text goes into quotes, as in \"text\": \"5\"");
  }
  const FieldSketch* ask = find_text(record, kAsks);
  const FieldSketch* reply = find_text(record, kReplies);
  if (ask != nullptr && reply != nullptr) {
    return concat(fields, "; if ", quoted(ask->name), " is asked and ", quoted(reply->name),
                  " is the reply, name them \"prompt\" and \"completion\"",
                  record.has("system_prompt") ? ", and \"system_prompt\" \"system\"" : "");
  }
  const auto list = std::ranges::find_if(record.fields, [](const FieldSketch& field) {
    return field.lists_objects && !field.messages;
  });
  if (list == record.fields.end()) return fields + explain_fields(record, record_start, is_first);
  return fields + explain_list(list->name, sketch_inside(record_start, list->name), is_first);
}

namespace {

// Returns the record's format if the preference fields are ignored. Returns null if that
// format would learn a prompt's replies.
std::optional<FormatChoice> find_rest(const RecordSketch& record) {
  auto rest = match_format(record, kAutoFormat);
  if (!rest) return rest;
  if (rest->name != "messages" && rest->name != "sharegpt") return rest;
  for (const FieldSketch& field : record.fields) {
    const bool is_usual = field.name == "conversations" || field.name == "messages";
    const bool is_read = rest->column.empty() ? is_usual : field.name == rest->column;
    if (is_read && field.awaits_reply) return std::nullopt;
  }
  return rest;
}

// True if the last message is the wanted reply, as in ultrafeedback_binarized.
bool has_wanted_reply(const RecordSketch& record, const std::optional<FormatChoice>& rest) {
  if (!rest || !rest->column.empty()) return false;
  if (rest->name != "messages" && rest->name != "sharegpt") return false;
  for (const char* name : {"conversations", "messages"}) {
    const FieldSketch* list = record.find(name);
    if (list != nullptr && list->messages) return list->ends_with_reply;
  }
  return false;
}

// True if "label" says whether the reply is wanted. Next to a question, another value is the
// question's class. Next to messages, 0 and 1 may be a class, too.
bool is_of_kto(const FieldSketch& label, const FormatChoice& rest) {
  if (rest.name == "prompt_completion") return is_boolean(label.kind) || label.is_bit;
  return is_boolean(label.kind) && (rest.name == "messages" || rest.name == "sharegpt");
}

// Names the flag with which the record can be read. `what`: the part of the record that is
// learned with this flag.
std::string name_way_out(const FormatChoice& rest, const char* what) {
  return concat("; --data_format ", rest.name, " learns ", what,
                " (for one file of several: fastsft data convert --data_format ", rest.name, ")");
}

}  // namespace

bool is_of_preference(const std::string& name, ValueKind kind) {
  if (name == "label") {
    return is_boolean(kind) || kind == ValueKind::kNumber || kind == ValueKind::kString;
  }
  return kind != ValueKind::kNull && (name == "chosen" || name == "rejected");
}

std::string refuse_preference(const RecordSketch& record) {
  const auto rest = find_rest(record);
  if (record.has("chosen") && record.has("rejected") && !has_wanted_reply(record, rest)) {
    const bool is_chosen = rest && rest->column == "chosen";
    const char* what = is_chosen ? "the messages of \"chosen\"" : "the record without them";
    const std::string flag =
        rest && rest->column != "rejected" ? name_way_out(*rest, what) : std::string();
    return concat("\"chosen\" and \"rejected\" are ", kPreference, flag);
  }
  const FieldSketch* label = record.find("label");
  if (label == nullptr || !rest || !is_of_kto(*label, *rest)) return {};
  return concat("\"label\" is ", label->is_bit ? "0 or 1" : describe(label->kind),
                ": it says whether the reply is wanted (preference data, as for KTO); keep the ",
                "records where it is true and leave the field out",
                name_way_out(*rest, "the reply of every record"));
}

}  // namespace fastsft
