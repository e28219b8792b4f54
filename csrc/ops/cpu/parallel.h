#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace fastsft::cpu {

// Row kernels split their rows over the threads of torch; below this many elements one thread is
// faster.
inline constexpr int64_t kElementsPerTask = 16384;

inline int64_t rows_per_task(int64_t row_elements) {
  const int64_t rows = kElementsPerTask / (row_elements > 0 ? row_elements : 1);
  return rows > 0 ? rows : 1;
}

// to = beta * to + the sum over rows [0, rows) of what `add` adds to its part.
//   add(begin, end, part): adds the rows [begin, end) to `part`, floats shaped like `to`.
// One part a thread, added up in their order: deterministic for a given number of threads. `to` is
// contiguous float32; with beta = 0 what it held does not matter.
using AddRows = std::function<void(int64_t begin, int64_t end, float* part)>;
// What it takes of `Scratch`, in floats.
int64_t row_parts_floats(int64_t size, int64_t threads);
void sum_row_parts(int64_t rows, const at::Tensor& to, float beta, const AddRows& add);

}  // namespace fastsft::cpu
