#pragma once

#include <cstddef>
#include <cstdint>

namespace fastsft {

// What splitting needs to know of 64 bytes of JSON; bit i is of byte i.
struct JsonBlock {
  uint64_t quotes = 0;
  uint64_t backslashes = 0;
  uint64_t brackets = 0;  // [ ] { }
};

inline constexpr size_t kJsonBlockSize = 64;

// Classifies `count` blocks from `text` on, with the widest vectors that this machine has.
void classify_json(const char* text, size_t count, JsonBlock* blocks);

// The first quote, backslash or control character in [text, text + size), else `size`.
// `*has_wide` is set when a byte before it is not ASCII, and left alone otherwise.
size_t find_string_special(const char* text, size_t size, bool* has_wide);

// The same without vectors, for machines that lack them and for the test of both.
void classify_json_portable(const char* text, size_t count, JsonBlock* blocks);
size_t find_string_special_portable(const char* text, size_t size, bool* has_wide);

}  // namespace fastsft
