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

}  // namespace

bool is_of_preference(const std::string& name, ValueKind kind) {
  if (name == "label") return is_boolean(kind);
  return kind != ValueKind::kNull && (name == "chosen" || name == "rejected");
}

std::string refuse_preference(const RecordSketch& record) {
  const auto rest = find_rest(record);
  if (record.has("chosen") && record.has("rejected")) {
    const bool is_chosen = rest && rest->column == "chosen";
    const char* what = is_chosen ? "the messages of \"chosen\"" : "the record without them";
    const std::string flag = rest && rest->column != "rejected"
                                 ? concat("; --data_format ", rest->name, " learns ", what)
                                 : "";
    return concat("\"chosen\" and \"rejected\" are preference data, which supervised training ",
                  "cannot use as it is; write the chosen reply as the last of the messages, or as ",
                  "completion of a prompt, and leave both fields out", flag);
  }
  const FieldSketch* label = record.find("label");
  if (label == nullptr || !is_boolean(label->kind) || !rest || rest->name == "text") return {};
  return concat("\"label\" is ", describe(label->kind),
                ": it says whether the reply is wanted (preference data, as for KTO); keep the ",
                "records where it is true and leave the field out; --data_format ", rest->name,
                " learns the reply of every record");
}

}  // namespace fastsft
