#pragma once

#include <string>

namespace fastsft {

// A name inside a directory and nothing more: no separator, "..", drive letter, control character,
// nor more than 255 bytes (docs/spec/reliability.md, section 5.2). std::invalid_argument otherwise.
void check_plain_file_name(const std::string& name, const std::string& where);

// Plain names joined by single slashes: a file in the directory or in a folder of it.
void check_relative_name(const std::string& name, const std::string& where);

// `directory`/`name` after check_plain_file_name and after following links: a target outside the
// directory is refused, except the Hugging Face cache's own (snapshots/<revision>/x -> blobs/y).
std::string path_inside(const std::string& directory, const std::string& name,
                        const std::string& where);
// The same after check_relative_name.
std::string nested_path_inside(const std::string& directory, const std::string& name,
                               const std::string& where);

}  // namespace fastsft
