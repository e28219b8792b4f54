#pragma once

#include <cstdint>

namespace fastsft::cpu {

// Columns of tile operands are padded to a multiple of this.
inline constexpr int64_t kTileColumns = 16;
inline int64_t pad_columns(int64_t count) {
  return (count + kTileColumns - 1) / kTileColumns * kTileColumns;
}

// c[i, j] (+)= sum over k of a(i, k) b[k, j] for i < m, j < n, k < depth, on one thread.
// a(i, k) = a[i * a_row + k * a_depth], so a transposed left operand costs nothing; b and c have
// rows of ldb and ldc. n must be a multiple of kTileColumns. For the small products inside
// attention.
struct TileGemm {
  int64_t m, n, depth;
  const float* a;
  int64_t a_row, a_depth;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  bool accumulate;
};

void tile_gemm(const TileGemm& product);

}  // namespace fastsft::cpu
