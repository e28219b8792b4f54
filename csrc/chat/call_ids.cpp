#include "chat/call_ids.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "core/json_scanner.h"
#include "core/json_text.h"

namespace fastsft {
namespace {

constexpr int kShortSize = 9;

std::string as_json(std::string_view text) {
  std::string json;
  append_json_string(text, json);
  return json;
}

// Returns a hash of the text (FNV-1a) that is the same on every machine.
std::string short_id(std::string_view text) {
  constexpr std::string_view kDigits =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::string id;
  for (int i = 0; i < kShortSize; ++i, hash /= kDigits.size()) {
    id += kDigits[hash % kDigits.size()];
  }
  return id;
}

// Counts characters, not bytes: templates that need short ids check only the character count.
bool is_short(std::string_view id) {
  return std::ranges::count_if(id, [](char c) { return (c & 0xC0) != 0x80; }) == kShortSize;
}

// Returns the text in field `name` of the scanner's next object. With `looks_inside`, also searches
// the field "function" if it is an object.
std::string find_text(JsonScanner scanner, std::string_view name, bool looks_inside) {
  std::string found, key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    const ValueKind kind = scanner.peek();
    if (key == name && kind == ValueKind::kString) {
      scanner.read_string(found);
      continue;
    }
    if (looks_inside && key == "function" && kind == ValueKind::kObject) {
      found = find_text(scanner, name, true);
    }
    scanner.skip();
  }
  return found;
}

// Returns the object with a field "id" added at its end. If the object already has an "id", readers
// use the last "id".
std::string with_id(std::string_view call, const std::string& id) {
  const std::string_view front = call.substr(0, call.rfind('}'));
  const bool is_empty = front.find_last_not_of(kJsonSpace) == front.find('{');
  return concat(front, is_empty ? "" : ", ", "\"id\": ", id, "}");
}

// Returns the calls in "tool_calls", which is a list or a string with the list's JSON. Returns
// nothing for any other value.
std::vector<std::string> split_calls(const std::string& calls) {
  std::vector<std::string> parts;
  try {
    JsonScanner outer(calls);
    std::string text;
    if (outer.peek() == ValueKind::kString) outer.read_string(text);
    JsonScanner scanner(text.empty() ? std::string_view(calls) : std::string_view(text));
    if (scanner.peek() != ValueKind::kArray) return {};
    scanner.enter_array();
    while (scanner.next_item()) {
      if (scanner.peek() != ValueKind::kObject) return {};
      parts.emplace_back(scanner.read_raw());
    }
  } catch (const JsonFault&) {  // the renderer reports broken JSON
    return {};
  }
  return parts;
}

std::string text_of(const std::string& json) {
  std::string text;
  if (!json.empty()) JsonScanner(json).read_string(text);
  return text;
}

}  // namespace

std::string CallIds::make(std::string_view call) {
  has_made_one_ = true;
  const size_t number = num_calls_;
  if (form_ != CallIdForm::kNamed) return short_id(concat(number, ":", call));
  return concat("functions.", find_text(JsonScanner(call), "name", true), ":", number);
}

// Returns the id of a call as JSON. `own`: the call's id in the data. `of_result`: the id of the
// matching result, unless another call has that id. Both may be empty.
std::string CallIds::settle(std::string_view call, const std::string& own,
                            const std::string& of_result) {
  const std::string& given = own.empty() ? of_result : own;
  if (given.empty()) return as_json(make(call));
  if (form_ != CallIdForm::kShort || is_short(given)) return as_json(given);
  has_made_one_ = true;
  return as_json(short_id(given));
}

std::string CallIds::of_calls(const std::string& calls, const std::vector<std::string>& of_results,
                              bool again) {
  if (form_ == CallIdForm::kNone) return calls;
  open_.clear();
  if (again) num_calls_ = num_before_;
  num_before_ = num_calls_;
  std::vector<std::string> results, own;
  for (const std::string& json : of_results) results.push_back(text_of(json));
  const auto parts = split_calls(calls);
  for (const std::string& call : parts) own.push_back(find_text(JsonScanner(call), "id", false));
  std::string changed;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_taken = i >= results.size() || std::ranges::count(own, results[i]) != 0;
    const std::string id = settle(parts[i], own[i], is_taken ? std::string() : results[i]);
    const bool is_kept = !own[i].empty() && id == as_json(own[i]);
    changed += concat(i == 0 ? "[" : ", ", is_kept ? parts[i] : with_id(parts[i], id));
    const bool has_result = own[i].empty() ? !is_taken && !results[i].empty()
                                           : std::ranges::count(results, own[i]) != 0;
    if (!has_result) open_.push_back(id);
    ++num_calls_;
  }
  return changed.empty() ? calls : changed + "]";
}

std::string CallIds::of_result(const std::string& given) {
  if (form_ == CallIdForm::kNone) return given;
  const std::string own = text_of(given);
  if (!own.empty()) {
    const bool is_kept = form_ != CallIdForm::kShort || is_short(own);
    has_made_one_ |= !is_kept;
    return is_kept ? given : as_json(short_id(own));
  }
  if (open_.empty()) return {};
  has_made_one_ = true;
  std::string id = std::move(open_.front());
  open_.pop_front();
  return id;
}

}  // namespace fastsft
