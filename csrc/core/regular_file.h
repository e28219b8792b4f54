#pragma once

#include <cstddef>
#include <string>

namespace fastsft {

// Opens the regular file at `path` for reading and returns its descriptor. Never blocks, not even
// for a FIFO without a writer. Throws std::invalid_argument for other file types and for Git LFS
// pointers, and FileError if the file cannot be opened.
int open_regular_file(const std::string& path, const std::string& what);

// Returns all bytes of the regular file at `path`. `what` names the file in messages ("data file")
// and may be empty. Throws std::invalid_argument for other file types, and for a file of more than
// `max_bytes`, which is not read.
std::string read_regular_file(const std::string& path, size_t max_bytes,
                              const std::string& what = "");

}  // namespace fastsft
