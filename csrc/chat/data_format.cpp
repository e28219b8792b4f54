#include "chat/data_format.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "chat/role_names.h"

namespace fastsft {
namespace {

constexpr size_t kMostNamed = 16;
// 0 and 1 as JSON, including the forms from CSV files (texts) and from columns with nulls (0.0).
constexpr std::array<std::string_view, 6> kBits = {"0", "1", "0.0", "1.0", "\"0\"", "\"1\""};
constexpr size_t kMostSketched = 1000;  // more fields do not help to detect a format

struct MessageSketch {
  std::optional<MessageNames> names;
  std::string role;
};

// Reads the scanner's next object and returns its field names and its role.
MessageSketch sketch_message(JsonScanner& scanner) {
  MessageSketch sketch;
  if (scanner.peek() != ValueKind::kObject) {
    scanner.skip();
    return sketch;
  }
  bool from = false, role = false, value = false, content = false;
  std::string key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    const bool is_set = scanner.peek() != ValueKind::kNull;
    from |= is_set && key == "from";
    role |= is_set && key == "role";
    value |= is_set && key == "value";
    content |= key == "content";
    const bool is_role = scanner.peek() == ValueKind::kString && (key == "from" || key == "role");
    if (is_role) {
      scanner.read_string(sketch.role);
    } else {
      scanner.skip();
    }
  }
  if (from && value) {
    sketch.names = MessageNames::kFromValue;
  } else if (role && content) {
    sketch.names = MessageNames::kRoleContent;
  }
  return sketch;
}

// Reads the scanner's next list and fills in `field`.
void sketch_list(JsonScanner& scanner, FieldSketch& field) {
  static const RoleNames roles(true, {});
  scanner.enter_array();
  field.is_nothing = !scanner.next_item();
  if (field.is_nothing) return;
  field.lists_objects = scanner.peek() == ValueKind::kObject;
  MessageSketch message = sketch_message(scanner);
  field.messages = message.names;
  auto role = roles.find(message.role);
  field.holds_reply = role == Role::kAssistant;
  while (scanner.next_item()) {
    message = sketch_message(scanner);
    role = roles.find(message.role);
    field.holds_reply |= role == Role::kAssistant;
  }
  field.awaits_reply = field.messages && (role == Role::kUser || role == Role::kTool);
  field.ends_with_reply = field.messages && role == Role::kAssistant;
}

}  // namespace

const FieldSketch* RecordSketch::find(const std::string& name) const {
  // If a field occurs twice, the last value counts.
  const auto found = std::find_if(fields.rbegin(), fields.rend(),
                                  [&](const FieldSketch& field) { return field.name == name; });
  const bool is_set = found != fields.rend() && found->kind != ValueKind::kNull;
  return is_set ? &*found : nullptr;
}

void UnusedFields::skip(const std::string& prefix, const std::string& name, JsonScanner& scanner) {
  const bool is_set = scanner.peek() != ValueKind::kNull;
  scanner.skip();
  if (is_set) add(prefix.empty() ? name : prefix + name);
}

void UnusedFields::add(const std::string& name) {
  if (names_.size() > kMostNamed || std::find(names_.begin(), names_.end(), name) != names_.end()) {
    return;
  }
  names_.push_back(names_.size() == kMostNamed ? "..." : name);
}

std::string FormatChoice::describe() const {
  return column.empty() ? format().title : format().title + " (" + column + ")";
}

void check_format_name(const std::string& name) {
  if (name == kAutoFormat || DataFormats::instance().contains(name)) return;
  std::string known = kAutoFormat;
  for (const std::string& each : DataFormats::instance().names()) known += ", " + each;
  throw_invalid("--data_format: expected one of ", known, ", got \"", name, "\"");
}

RecordSketch sketch_record(JsonScanner& scanner) {
  RecordSketch sketch;
  if (scanner.peek() != ValueKind::kObject) {
    scanner.skip();
    return sketch;
  }
  std::string key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    FieldSketch field{key, scanner.peek()};
    if (field.kind == ValueKind::kArray) {
      sketch_list(scanner, field);
    } else {
      const std::string_view json = scanner.read_raw();
      field.is_nothing = json.find_first_not_of("\" ") == std::string_view::npos;
      field.is_bit = std::ranges::find(kBits, json) != kBits.end();
    }
    if (sketch.fields.size() < kMostSketched) sketch.fields.push_back(std::move(field));
  }
  return sketch;
}

std::optional<FormatChoice> match_format(const RecordSketch& record, const std::string& name) {
  const DataFormats& formats = DataFormats::instance();
  std::optional<FormatChoice> best;
  for (const std::string& each : formats.names()) {
    if (name != kAutoFormat && name != each) continue;
    if (best && best->format().rank <= formats.get(each).rank) continue;
    const DataFormat& format = formats.get(each);
    const auto column = format.match(record);
    const bool is_doubtful =
        name == kAutoFormat && format.is_doubtful && format.is_doubtful(record);
    if (column && !is_doubtful) best = FormatChoice{each, *column};
  }
  return best;
}

}  // namespace fastsft
