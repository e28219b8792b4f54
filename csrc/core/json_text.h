#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fastsft {

// Position of the first quote, backslash or control character in [text, text + size), else `size`.
// Sets `*has_wide` if a byte before it is not ASCII, and else leaves it alone.
size_t find_string_special(const char* text, size_t size, bool* has_wide);
// The same without vectors, for machines that lack them and for tests of both.
size_t find_string_special_portable(const char* text, size_t size, bool* has_wide);

// Appends `value` as a JSON string to `text`. UTF-8 stays as it is; a lone surrogate becomes an
// escape, because only an escape can carry it.
void append_json_string(std::string_view value, std::string& text);

}  // namespace fastsft
