#pragma once

#include <cstdint>

namespace fastsft::cuda {

// What kernels compute from; arithmetic is float32.
enum class Dtype { kFloat, kBFloat16, kHalf };

// The widest access, in elements, that fits rows of `columns` elements of `element_size` bytes
// when every row begins at an address that is a multiple of `alignment` bytes: 16 bytes or, where
// that does not fit, one element.
int access_width(int64_t columns, int element_size, uint64_t alignment);

// How one row is laid over threads that keep it in registers.
struct RowPlan {
  int threads;         // of one row; a multiple of 32
  int rows_per_block;  // more than one only when a row is one warp
  int packs;           // accesses of each thread: 2, 4, or 0 when the row does not fit
};
RowPlan plan_row(int64_t columns, int width);

// Blocks for `rows` rows, at most `limit`.
int64_t blocks_for(int64_t rows, int rows_per_block, int64_t limit);

}  // namespace fastsft::cuda
