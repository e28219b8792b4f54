#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fastsft {

using Json = nlohmann::ordered_json;

// Parses untrusted JSON. Refuses nesting deeper than `max_depth`, duplicate keys, and a trailing
// NUL. Throws std::invalid_argument "<where>: not JSON at byte <k>: <what>".
Json parse_json(std::string_view text, const std::string& where, int max_depth = 64);

// Reads the whole file and parses it. Throws std::runtime_error when the file cannot be read.
Json read_json_file(const std::string& path);

}  // namespace fastsft
