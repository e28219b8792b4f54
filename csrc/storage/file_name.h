#pragma once

#include <string>

namespace fastsft {

// Throws std::invalid_argument unless `name` is a plain file name: no separator, "..", drive letter
// or control character, and at most 255 bytes (docs/spec/reliability.md, section 5.2).
void check_plain_file_name(const std::string& name, const std::string& where);

// Throws std::invalid_argument unless `name` consists of plain file names joined by single slashes.
void check_relative_name(const std::string& name, const std::string& where);

// Returns `directory`/`name` after `check_plain_file_name`. Throws std::invalid_argument if a link
// leads out of the directory, except into the blobs of the Hugging Face cache
// (snapshots/<revision>/x -> blobs/y).
std::string path_inside(const std::string& directory, const std::string& name,
                        const std::string& where);
// Returns `directory`/`name` after `check_relative_name`, with the same check of links.
std::string nested_path_inside(const std::string& directory, const std::string& name,
                               const std::string& where);

}  // namespace fastsft
