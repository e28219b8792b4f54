#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fastsft {

using Json = nlohmann::ordered_json;

// Keys that one object may have: looking one up takes a step for each of them.
inline constexpr size_t kMaxJsonKeys = 50000;
// Bytes of a file that is read whole.
inline constexpr size_t kMaxJsonFile = size_t{256} << 20;

// Parses untrusted JSON. Refuses nesting deeper than `max_depth`, duplicate keys, objects of more
// than kMaxJsonKeys keys, and NUL bytes. `only`: of an object, the one member that is kept.
// Throws std::invalid_argument "<where>: not JSON at byte <k>: <what>".
Json parse_json(std::string_view text, const std::string& where, int max_depth = 64,
                const char* only = nullptr);

// Reads the whole file and parses it. Throws std::runtime_error when the file cannot be read, and
// std::invalid_argument when it is no regular file or larger than kMaxJsonFile.
Json read_json_file(const std::string& path, const char* only = nullptr);

}  // namespace fastsft
