#pragma once

#include <string>
#include <string_view>

namespace fastsft {

// Appends `value` as a JSON string to `text`: UTF-8 as it is, but for lone surrogates, which only
// escapes can carry.
void append_json_string(std::string_view value, std::string& text);

}  // namespace fastsft
