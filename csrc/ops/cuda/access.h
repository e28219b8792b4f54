#pragma once

#include <cstdint>

namespace fastsft::cuda {

// Element type that a kernel reads; arithmetic is float32.
enum class Dtype { kFloat, kBFloat16, kHalf };

// Returns the elements per memory access for rows of `columns` elements, each `element_size` bytes.
// Every row begins at a multiple of `alignment` bytes. An access has 16 bytes if they fit,
// otherwise one element.
int access_width(int64_t columns, int element_size, uint64_t alignment);

// Assigns one row to threads, which keep the row in registers.
struct RowPlan {
  int threads;         // per row; a multiple of 32
  int rows_per_block;  // 1 unless a row is one warp
  int packs;           // accesses per thread: 2, 4, or 0 if the row does not fit into registers
};
RowPlan plan_row(int64_t columns, int width);

// Returns the block count for `rows` rows, at most `limit`.
int64_t blocks_for(int64_t rows, int rows_per_block, int64_t limit);

}  // namespace fastsft::cuda
