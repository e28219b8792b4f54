#pragma once

#include <cstddef>
#include <functional>

namespace fastsft {

// Calls `body(begin, end)` for parts of [0, count) on several threads and waits for all. The first
// exception is thrown again here. `num_threads` 0 takes as many as the machine has cores, eight at
// most.
void run_in_parts(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body);

// The number of threads that `wanted` means.
int choose_threads(int wanted);

}  // namespace fastsft
