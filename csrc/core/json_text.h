#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fastsft {

// Returns the position of the first quote, backslash or control character in [text, text + size),
// or `size`. Sets `*has_wide` if an earlier byte is not ASCII; otherwise leaves it unchanged.
size_t find_string_special(const char* text, size_t size, bool* has_wide);
// Does the same without vectors, for machines without AVX2 and for tests.
size_t find_string_special_portable(const char* text, size_t size, bool* has_wide);

// Appends `value` as a JSON string to `text`. UTF-8 is copied; a lone surrogate becomes an escape,
// because UTF-8 cannot contain it.
void append_json_string(std::string_view value, std::string& text);

}  // namespace fastsft
