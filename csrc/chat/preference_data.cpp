#include "chat/preference_data.h"

#include "core/error.h"

namespace fastsft {
namespace {

bool is_boolean(ValueKind kind) { return kind == ValueKind::kTrue || kind == ValueKind::kFalse; }

// The format of the record without what is refused; null where it learns a prompt's replies.
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

// The last of the messages is the reply that is wanted, as in ultrafeedback_binarized.
bool has_wanted_reply(const RecordSketch& record, const std::optional<FormatChoice>& rest) {
  if (!rest || !rest->column.empty()) return false;
  if (rest->name != "messages" && rest->name != "sharegpt") return false;
  for (const char* name : {"conversations", "messages"}) {
    const FieldSketch* list = record.find(name);
    if (list != nullptr && list->messages) return list->ends_with_reply;
  }
  return false;
}

// Whether a "label" says if the reply is wanted. Next to a question it is a class of it; 0 and 1
// next to messages may be one, too.
bool is_of_kto(const FieldSketch& label, const FormatChoice& rest) {
  if (rest.name == "prompt_completion") return is_boolean(label.kind) || label.is_bit;
  return is_boolean(label.kind) && (rest.name == "messages" || rest.name == "sharegpt");
}

// `what` the flag makes of the record.
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
    return concat("\"chosen\" and \"rejected\" are preference data, which supervised training ",
                  "cannot use as it is; write the chosen reply as the last of the messages, or as ",
                  "completion of a prompt, and leave both fields out", flag);
  }
  const FieldSketch* label = record.find("label");
  if (label == nullptr || !rest || !is_of_kto(*label, *rest)) return {};
  return concat("\"label\" is ", label->is_bit ? "0 or 1" : describe(label->kind),
                ": it says whether the reply is wanted (preference data, as for KTO); keep the ",
                "records where it is true and leave the field out",
                name_way_out(*rest, "the reply of every record"));
}

}  // namespace fastsft
