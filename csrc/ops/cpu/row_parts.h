#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace fastsft::cpu {

// to = beta * to + the sum over rows [0, rows) of what `add` adds to its part.
//   add(begin, end, part): adds the rows [begin, end) to `part`, floats shaped like `to`.
// One part a thread, added up in their order: deterministic for a given number of threads. `to` is
// contiguous float32; with beta = 0 what it held does not matter.
using AddRows = std::function<void(int64_t begin, int64_t end, float* part)>;
// What it takes of `Scratch`, in floats.
int64_t row_parts_floats(int64_t size, int64_t threads);
void sum_row_parts(int64_t rows, const at::Tensor& to, float beta, const AddRows& add);

}  // namespace fastsft::cpu
