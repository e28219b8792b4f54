#include "ops/cpu/tile_gemm.h"

#include "ops/cpu/simd.h"

namespace fastsft::cpu {
namespace {

typedef float Lanes
    __attribute__((vector_size(kTileColumns * sizeof(float)), aligned(4), may_alias));

FASTSFT_INLINE Lanes load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }

// Computes one block of kRows x (kVectors * 16) results in registers.
template <int kRows, int kVectors>
FASTSFT_INLINE void block(const TileGemm& g, int64_t row, int64_t column) {
  Lanes sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const float* c = g.c + (row + r) * g.ldc + column + v * kTileColumns;
      sums[r][v] = g.accumulate ? load(c) : Lanes{};
    }
  }
  const float* a = g.a + row * g.a_row;
  const float* b = g.b + column;
  for (int64_t k = 0; k < g.depth; ++k, a += g.a_depth, b += g.ldb) {
    Lanes right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kTileColumns);
    for (int r = 0; r < kRows; ++r) {
      const float left = a[r * g.a_row];
      for (int v = 0; v < kVectors; ++v) sums[r][v] += left * right[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Lanes*>(g.c + (row + r) * g.ldc + column + v * kTileColumns) = sums[r][v];
    }
  }
}

template <int kRows, int kVectors>
FASTSFT_INLINE void columns(const TileGemm& g, int64_t row) {
  int64_t column = 0;
  for (; column + kVectors * kTileColumns <= g.n; column += kVectors * kTileColumns) {
    block<kRows, kVectors>(g, row, column);
  }
  for (; column < g.n; column += kTileColumns) block<kRows, 1>(g, row, column);
}

template <int kRows, int kVectors>
FASTSFT_INLINE void rows(const TileGemm& g) {
  int64_t row = 0;
  for (; row + kRows <= g.m; row += kRows) columns<kRows, kVectors>(g, row);
  for (; row + 4 <= g.m; row += 4) columns<4, 1>(g, row);
  for (; row < g.m; ++row) columns<1, 1>(g, row);
}

}  // namespace

#if defined(__x86_64__)
// The block shapes fill the vector registers: 32 registers with 16 floats, or 16 with 8.
__attribute__((target("arch=x86-64-v4"))) static void tile_gemm_v4(const TileGemm& g) {
  rows<12, 2>(g);
}
__attribute__((target("arch=x86-64-v3"))) static void tile_gemm_v3(const TileGemm& g) {
  rows<6, 1>(g);
}
#endif
static void tile_gemm_any(const TileGemm& g) { rows<4, 1>(g); }

void tile_gemm(const TileGemm& product) {
  using Kernel = void (*)(const TileGemm&);
#if defined(__x86_64__)
  static const Kernel kernel = __builtin_cpu_supports("x86-64-v4")   ? tile_gemm_v4
                               : __builtin_cpu_supports("x86-64-v3") ? tile_gemm_v3
                                                                     : tile_gemm_any;
#else
  static const Kernel kernel = tile_gemm_any;
#endif
  kernel(product);
}

}  // namespace fastsft::cpu
