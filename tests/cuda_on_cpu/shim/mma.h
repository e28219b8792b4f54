// Tensor cores of a warp: matrices of 16 x 16 in shared memory, sums in float32. Each lane reads the
// operands that it needs from memory, and computes and stores eight elements of the result.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime_api.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

inline float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
inline float widened(__half value) { return __half2float(value); }

template <typename Use, int kM, int kN, int kK, typename T, typename Order = void>
struct fragment {
  static_assert(kM == 16 && kN == 16 && kK == 16, "the only shape here");
  float at[16][16];  // by rows
};
template <typename T>
struct fragment<accumulator, 16, 16, 16, T> {
  float own[8];  // of row lane / 2, from column 8 * (lane % 2) on
};

template <typename T>
void fill_fragment(fragment<accumulator, 16, 16, 16, T>& sums, float value) {
  for (float& each : sums.own) each = value;
}

template <typename Use, typename T, typename Order>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Order>& to, const T* from, unsigned stride) {
  // As the device demands: 32 bytes, rows at multiples of 16.
  if (reinterpret_cast<uintptr_t>(from) % 32 != 0 || stride * sizeof(T) % 16 != 0) {
    cuda_on_cpu::trap();
  }
  for (unsigned i = 0; i < 16; ++i) {
    for (unsigned j = 0; j < 16; ++j) {
      to.at[i][j] =
          widened(from[std::is_same_v<Order, row_major> ? i * stride + j : j * stride + i]);
    }
  }
}

template <typename A, typename B, typename T>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& to,
              const fragment<matrix_a, 16, 16, 16, T, A>& a,
              const fragment<matrix_b, 16, 16, 16, T, B>& b,
              const fragment<accumulator, 16, 16, 16, float>& addend) {
  const int row = cuda_on_cpu::lane() / 2, column = cuda_on_cpu::lane() % 2 * 8;
  for (int j = 0; j < 8; ++j) {
    float sum = addend.own[j];
    for (int k = 0; k < 16; ++k) sum += a.at[row][k] * b.at[k][column + j];
    to.own[j] = sum;
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from,
                              unsigned stride, layout_t) {
  if (reinterpret_cast<uintptr_t>(to) % 32 != 0 || stride % 4 != 0) cuda_on_cpu::trap();
  const unsigned row = static_cast<unsigned>(cuda_on_cpu::lane()) / 2,
                 column = static_cast<unsigned>(cuda_on_cpu::lane()) % 2 * 8;
  for (unsigned j = 0; j < 8; ++j) to[row * stride + column + j] = from.own[j];
}

}  // namespace nvcuda::wmma
