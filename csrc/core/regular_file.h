#pragma once

#include <cstddef>
#include <string>

namespace fastsft {

// Opens the regular file at `path` for reading and returns its descriptor. Never waits: a FIFO
// without a writer is refused at once. std::invalid_argument for what is no regular file and for a
// pointer of Git LFS, FileError for what cannot be opened.
int open_regular_file(const std::string& path, const std::string& what);

// All bytes of the regular file at `path`. `what` names it in messages ("data file"), and may be
// empty. std::invalid_argument when it is none or holds more than `max_bytes`, before it is read.
std::string read_regular_file(const std::string& path, size_t max_bytes,
                              const std::string& what = "");

}  // namespace fastsft
