#pragma once

#include <cstdint>

namespace fastsft::cpu {

// Tile operands have their columns padded to a multiple of kTileColumns.
inline constexpr int64_t kTileColumns = 16;
inline int64_t pad_columns(int64_t count) {
  return (count + kTileColumns - 1) / kTileColumns * kTileColumns;
}

// A matrix product c[i, j] (+)= sum over k of a(i, k) b[k, j] for i < m, j < n, k < depth, on one
// thread. a(i, k) = a[i * a_row + k * a_depth], so a transposed left operand costs nothing; b and c
// have rows of ldb and ldc elements. n must be a multiple of kTileColumns. Used for the small
// products in attention.
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
