#include "ops/rope/rope_rows.h"

#include "ops/cpu/convert.h"

namespace fastsft::cpu {
namespace {

template <typename T>
FASTSFT_INLINE void rotate(T* x, const float* cos, const float* sin, float direction,
                           int64_t num_heads, int64_t half) {
  for (int64_t head = 0; head < num_heads; ++head, x += 2 * half) {
    T* u = x;
    T* v = x + half;
#pragma omp simd
    for (int64_t j = 0; j < half; ++j) {
      const float a = to_float(u[j]), b = to_float(v[j]), s = direction * sin[j];
      store(&u[j], a * cos[j] - b * s);
      store(&v[j], b * cos[j] + a * s);
    }
  }
}

}  // namespace

FASTSFT_CLONES void rope_row(float* x, const float* cos, const float* sin, float direction,
                             int64_t num_heads, int64_t half) {
  rotate(x, cos, sin, direction, num_heads, half);
}

FASTSFT_CLONES void rope_row(bfloat16* x, const float* cos, const float* sin, float direction,
                             int64_t num_heads, int64_t half) {
  rotate(x, cos, sin, direction, num_heads, half);
}

}  // namespace fastsft::cpu
