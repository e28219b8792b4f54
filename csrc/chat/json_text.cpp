#include "chat/json_text.h"

#include <cstdio>

#include "chat/json_blocks.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

void append_escape(unsigned code, std::string& text) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", code);
  text += escape;
}

// UTF-8 as it is, but for lone surrogates, which only escapes can carry.
void append_utf8(std::string_view part, std::string& text) {
  while (true) {
    const size_t bad = find_invalid_utf8(part);
    text += part.substr(0, bad);
    if (bad == std::string_view::npos) return;
    const bool is_surrogate = is_encoded_surrogate(part, bad);
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(part[bad + i]); };
    append_escape(is_surrogate ? (byte(0) & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu)
                               : 0xFFFDu,
                  text);
    part.remove_prefix(bad + (is_surrogate ? 3 : 1));
  }
}

}  // namespace

void append_json_string(std::string_view value, std::string& text) {
  text += '"';
  while (!value.empty()) {
    bool has_wide = false;
    const size_t end = find_string_special(value.data(), value.size(), &has_wide);
    if (has_wide) {
      append_utf8(value.substr(0, end), text);
    } else {
      text += value.substr(0, end);
    }
    if (end == value.size()) break;
    const char c = value[end];
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else {
      append_escape(static_cast<unsigned char>(c), text);
    }
    value.remove_prefix(end + 1);
  }
  text += '"';
}

}  // namespace fastsft
