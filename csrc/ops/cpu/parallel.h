#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace fastsft::cpu {

// Elements per task when row kernels divide rows among torch's threads; with fewer elements, one
// thread is faster.
inline constexpr int64_t kElementsPerTask = 16384;

inline int64_t rows_per_task(int64_t row_elements) {
  const int64_t rows = kElementsPerTask / (row_elements > 0 ? row_elements : 1);
  return rows > 0 ? rows : 1;
}

// to = beta * to + the sum over rows [0, rows), where `add` computes partial sums.
//   add(begin, end, part): adds the rows [begin, end) to `part`, floats shaped like `to`.
// Each thread has one part, and the parts are added in order, so the result is deterministic for a
// given thread count. `to` is contiguous float32; if beta is 0, its old content is ignored.
using AddRows = std::function<void(int64_t begin, int64_t end, float* part)>;
// Returns how many floats sum_row_parts takes from `Scratch`.
int64_t row_parts_floats(int64_t size, int64_t threads);
void sum_row_parts(int64_t rows, const at::Tensor& to, float beta, const AddRows& add);

}  // namespace fastsft::cpu
