#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/json_scanner.h"
#include "core/utf8.h"

namespace fastsft::fuzz {

// Aborts with the caller's file and line unless `ok`.
inline void check(bool ok, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (ok) return;
  std::fprintf(stderr, "%s:%d: a promise is broken\n", file, line);
  std::abort();
}

inline bool is_utf8(std::string_view text) {
  return find_invalid_utf8(text) == std::string_view::npos;
}

// Most levels of a JSON value that is made of a record's fields.
inline constexpr int kMostLevels = JsonScanner::kMaxDepth + 8;

// Aborts unless `text` is one JSON value. Returns the kind of the value.
inline ValueKind check_json(std::string_view text) {
  try {
    JsonScanner scanner(text, 0, 0, "the value", JsonRules::kPython, kMostLevels);
    const ValueKind kind = scanner.peek();
    scanner.skip();
    scanner.expect_end();
    return kind;
  } catch (const JsonFault&) {
    std::abort();
  }
}

}  // namespace fastsft::fuzz
