#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fastsft {

using Json = nlohmann::ordered_json;

// Most keys in an object. Key lookup is linear.
inline constexpr size_t kMaxJsonKeys = 50000;
// Largest file that is read whole, in bytes.
inline constexpr size_t kMaxJsonFile = size_t{256} << 20;

// Parses untrusted JSON. Throws std::invalid_argument "<where>: not JSON at byte <k>: <what>" for
// bad syntax, and also for nesting deeper than `max_depth`, duplicate keys, objects with more than
// kMaxJsonKeys keys, and NUL bytes. `only`: the single member of an object to keep.
Json parse_json(std::string_view text, const std::string& where, int max_depth = 64,
                const char* only = nullptr);

// Reads and parses a whole file. Throws std::runtime_error if the file cannot be read, and
// std::invalid_argument if it is no regular file or larger than kMaxJsonFile.
Json read_json_file(const std::string& path, const char* only = nullptr);

}  // namespace fastsft
