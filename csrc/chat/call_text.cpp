#include "chat/call_text.h"

#include "core/error.h"
#include "core/json_scanner.h"
#include "core/json_text.h"

namespace fastsft {
namespace {

constexpr std::string_view kBegin = "<think>", kEnd = "</think>";

std::string_view strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonSpace) + 1 - begin);
}

// Returns true if the scanner's next object names a function.
bool names_function(JsonScanner scanner) {
  bool is_named = false;
  std::string key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    is_named = is_named || key == "name" || key == "function";
    scanner.skip();
  }
  return is_named;
}

std::string calls_in(std::string_view text) {
  std::string calls;
  const auto add = [&](JsonScanner& scanner) {
    if (scanner.peek() != ValueKind::kObject || !names_function(scanner)) return false;
    calls += concat(calls.empty() ? "[" : ", ",
                    "{\"type\": \"function\", \"function\": ", scanner.read_raw(), "}");
    return true;
  };
  try {
    JsonScanner scanner(text);
    if (scanner.peek() != ValueKind::kArray) {
      if (!add(scanner)) return {};
    } else {
      scanner.enter_array();
      while (scanner.next_item()) {
        if (!add(scanner)) return {};
      }
    }
    scanner.expect_end();
  } catch (const JsonFault&) {
    return {};
  }
  return calls.empty() ? calls : calls + "]";
}

size_t count_items(JsonScanner scanner) {
  size_t count = 0;
  scanner.enter_array();
  while (scanner.next_item()) {
    scanner.skip();
    ++count;
  }
  return count;
}

}  // namespace

bool is_call_role(std::string_view name) { return name == "function_call" || name == "tool_call"; }

CallText read_call_text(std::string_view text) {
  CallText result;
  text = strip(text);
  const size_t end = text.starts_with(kBegin) ? text.find(kEnd) : text.npos;
  if (end != text.npos) {
    result.thoughts = text.substr(0, end + kEnd.size());
    const std::string_view inner = strip(text.substr(kBegin.size(), end - kBegin.size()));
    if (!inner.empty()) append_json_string(inner, result.reasoning);
    text.remove_prefix(result.thoughts.size());
  }
  result.calls = calls_in(text);
  return result;
}

std::string join_calls(std::string_view first, std::string_view second) {
  first = strip(first);
  second = strip(second);
  if (!first.starts_with('[') || !second.starts_with('[')) return {};
  return concat(first.substr(0, first.size() - 1), ", ", second.substr(1));
}

size_t count_calls(std::string_view calls) {
  try {
    JsonScanner scanner(calls);
    if (scanner.peek() == ValueKind::kArray) return count_items(scanner);
    const Value value = scanner.read_value();
    JsonScanner inner(value.text);
    if (value.is_text() && inner.peek() == ValueKind::kArray) return count_items(inner);
  } catch (const JsonFault&) {  // the renderer reports broken JSON
  }
  return 1;
}

}  // namespace fastsft
