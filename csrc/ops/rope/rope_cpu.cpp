#include <torch/library.h>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/rope/rope.h"

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

// Rotates one token's heads in place; `direction` is 1, or -1 for the inverse.
FASTSFT_CLONES void rope_row(float* x, const float* cos, const float* sin, float direction,
                             int64_t num_heads, int64_t half) {
  rotate(x, cos, sin, direction, num_heads, half);
}

FASTSFT_CLONES void rope_row(bfloat16* x, const float* cos, const float* sin, float direction,
                             int64_t num_heads, int64_t half) {
  rotate(x, cos, sin, direction, num_heads, half);
}

FASTSFT_CLONES void rope_row(float16* x, const float* cos, const float* sin, float direction,
                             int64_t num_heads, int64_t half) {
  rotate(x, cos, sin, direction, num_heads, half);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

template <typename T>
void rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
            const at::Tensor& positions, int64_t num_heads, float direction) {
  const int64_t half = cos.size(1), stride = x.stride(0), limit = cos.size(0);
  const int32_t* position = positions.data_ptr<int32_t>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    TORCH_CHECK_VALUE(position[i] >= 0 && position[i] < limit, "rope: position ", position[i],
                      " of token ", i, " is not below ", limit);
  }
  const int64_t grain = cpu::rows_per_task(num_heads * half * 2);
  at::parallel_for(0, x.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = position[i] * half;
      cpu::rope_row(x.data_ptr<T>() + i * stride, cos.data_ptr<float>() + at,
                    sin.data_ptr<float>() + at, direction, num_heads, half);
    }
  });
}

void rope_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
              const at::Tensor& positions, int64_t num_heads, bool inverse) {
  check_rope(x, cos, sin, positions, num_heads, inverse);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    rotate<T>(x, cos, sin, positions, num_heads, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("rope", &rope_cpu); }

}  // namespace fastsft
