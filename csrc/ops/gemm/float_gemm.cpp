#include "ops/gemm/float_gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

namespace at::native {
// libtorch_cpu exports this function, but torch does not ship its header.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                   float alpha);
}  // namespace at::native

namespace fastsft::cpu {
namespace {

constexpr int64_t kBlockElements = int64_t{4} << 20;  // elements widened at a time: 16 MiB

// Returns true if torch's oneDNN path accepts the dtype. There is no query, so it tries: torch
// refuses x86 processors without AVX-512, even for float32.
bool accepts(at::ScalarType dtype) {
  const at::Tensor one = at::ones({1, 1}, at::TensorOptions().dtype(dtype));
  try {
    at::native::mkldnn_matmul(one, one, at::empty_like(one), 0.0f, 1.0f);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Returns true if the matrix is a part of wider rows, or transposed, of taller columns.
bool is_strip(const at::Tensor& matrix) {
  return matrix.size(0) > 1 && matrix.size(1) > 1 && matrix.stride(0) != matrix.size(1) &&
         matrix.stride(1) != matrix.size(0);
}

// Returns true for an adapter's products, which have few columns or a small inner size. oneDNN is
// slower than MKL there, up to 30 times for column strips such as one linear layer of a fused
// group.
bool is_skinny(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  constexpr int64_t kFew = 64, kFewInStrips = 512;
  const int64_t narrow = std::min(a.size(1), b.size(1));
  if (narrow <= kFew) return true;
  return narrow <= kFewInStrips && (is_strip(a) || is_strip(b) || is_strip(out));
}

void blas_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  at::Tensor result = out;
  if (beta == 0)
    at::mm_out(result, a, b);
  else
    at::addmm_out(result, result, a, b, beta, 1);
}

}  // namespace

void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  if (out.numel() == 0) return;
  if (a.size(1) == 0) {  // nothing to multiply
    if (beta == 0)
      out.zero_();
    else if (beta != 1)
      out.mul_(beta);
    return;
  }
  if (a.scalar_type() == at::kBFloat16) return at::native::mkldnn_matmul(a, b, out, beta, 1.0f);
  static const bool takes_float = accepts(at::kFloat);
  if (takes_float && at::globalContext().userEnabledMkldnn() && !is_skinny(a, b, out))
    at::native::mkldnn_matmul(a, b, out, beta, 1.0f);
  else
    blas_gemm(a, b, out, beta);
}

void multiply_once(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
#if defined(__x86_64__)
  static const bool is_intel = __builtin_cpu_is("intel") != 0;
#else
  constexpr bool is_intel = false;
#endif
  if (is_intel && a.scalar_type() == at::kFloat && out.numel() > 0 && a.size(1) > 0)
    return blas_gemm(a, b, out, beta);
  multiply(a, b, out, beta);
}

bool takes_bfloat16() {
#if defined(__x86_64__)
  static const bool takes = __builtin_cpu_supports("avx512bf16") && accepts(at::kBFloat16);
  return takes && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

WidenedProduct widened_product(int64_t m, int64_t k, int64_t n, bool narrow_out) {
  const int64_t row = k + (narrow_out ? std::min(m, n) : 0);
  return {.by_columns = n > m,
          .step = std::max<int64_t>(64, kBlockElements / std::max<int64_t>(1, row))};
}

int64_t widened_floats(int64_t m, int64_t k, int64_t n, bool narrow_out) {
  const WidenedProduct plan = widened_product(m, k, n, narrow_out);
  const int64_t kept = plan.by_columns ? m : n, cut = plan.by_columns ? n : m;
  const int64_t block = std::min(plan.step, cut);
  return kept * k + block * k + (narrow_out ? block * kept : 0);
}

int64_t gemm_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out) {
  // gemm_cpu.cpp widens nothing in this case.
  if (out == c10::ScalarType::BFloat16 && takes_bfloat16()) return 0;
  return widened_floats(m, k, n, out != c10::ScalarType::Float);
}

}  // namespace fastsft::cpu
