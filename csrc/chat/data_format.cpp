#include "chat/data_format.h"

#include <algorithm>

namespace fastsft {
namespace {

constexpr size_t kMostNamed = 16;
constexpr size_t kMostSketched = 1000;  // more fields do not tell a format

// The names that the object uses which comes next; it is read.
std::optional<MessageNames> sketch_message(JsonScanner& scanner) {
  if (scanner.peek() != ValueKind::kObject) {
    scanner.skip();
    return std::nullopt;
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
    scanner.skip();
  }
  if (from && value) return MessageNames::kFromValue;
  if (role && content) return MessageNames::kRoleContent;
  return std::nullopt;
}

}  // namespace

const FieldSketch* RecordSketch::find(const std::string& name) const {
  // Of a field that comes twice the last one counts.
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
    FieldSketch field{key, scanner.peek(), std::nullopt, false};
    if (field.kind == ValueKind::kArray) {
      scanner.enter_array();
      if (scanner.next_item()) {
        field.lists_objects = scanner.peek() == ValueKind::kObject;
        field.messages = sketch_message(scanner);
        while (scanner.next_item()) scanner.skip();
      }
    } else {
      scanner.skip();
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
    const auto column = formats.get(each).match(record);
    if (column) best = FormatChoice{each, *column};
  }
  return best;
}

}  // namespace fastsft
