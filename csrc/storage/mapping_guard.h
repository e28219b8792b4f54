#pragma once

#include <cstddef>
#include <string>

namespace fastsft {

// Of a mapped file that somebody cuts short, or whose disk fails, the kernel ends the process that
// touches what is gone: SIGBUS, no word. For mappings told of here a line on standard error names
// the file first, and the status is 1. Other programs' handlers of the signal stay for all else.
void guard_mapping(const void* begin, size_t size, const std::string& path);
// Before it is unmapped.
void forget_mapping(const void* begin);

}  // namespace fastsft
