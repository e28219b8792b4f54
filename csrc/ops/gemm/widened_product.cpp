#include "ops/gemm/widened_product.h"

#include <algorithm>

#include "ops/gemm/float_gemm.h"

namespace fastsft::cpu {
namespace {

constexpr int64_t kBlockElements = int64_t{4} << 20;  // widened at a time: 16 MiB

}  // namespace

WidenedProduct widened_product(int64_t m, int64_t k, int64_t n) {
  return {.by_columns = n > m,
          .step = std::max<int64_t>(64, kBlockElements / std::max<int64_t>(1, k))};
}

int64_t widened_floats(int64_t m, int64_t k, int64_t n, bool narrow_out) {
  const WidenedProduct plan = widened_product(m, k, n);
  const int64_t kept = plan.by_columns ? m : n, cut = plan.by_columns ? n : m;
  const int64_t block = std::min(plan.step, cut);
  return kept * k + block * k + (narrow_out ? block * kept : 0);
}

int64_t gemm_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out) {
  if (out == c10::ScalarType::BFloat16 && takes_bfloat16())
    return 0;  // gemm_cpu.cpp: nothing is widened
  return widened_floats(m, k, n, out != c10::ScalarType::Float);
}

}  // namespace fastsft::cpu
