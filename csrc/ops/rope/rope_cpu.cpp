#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_rows.h"

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
  const bool wide = x.scalar_type() == at::kFloat;
  (wide ? rotate<float> : rotate<c10::BFloat16>)(x, cos, sin, positions, num_heads,
                                                 inverse ? -1.0f : 1.0f);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("rope", &rope_cpu); }

}  // namespace fastsft
