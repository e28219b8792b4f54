#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace fastsft::cpu {

// Row kernels split their rows over the threads of torch; below this many elements one thread is
// faster.
inline constexpr int64_t kElementsPerTask = 16384;

inline int64_t rows_per_task(int64_t row_elements) {
  const int64_t rows = kElementsPerTask / (row_elements > 0 ? row_elements : 1);
  return rows > 0 ? rows : 1;
}

}  // namespace fastsft::cpu
