#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft {

// out = (scale_a * a) (scale_b * b)^T + beta * addend, a product of 8-bit floats.
//   a [m, k] float8_e4m3fn or float8_e5m2, b [n, k] float8_e4m3fn, both contiguous; k and n are
//   multiples of 16. scale_a [m], scale_b [n] float32: factors of the rows (ops/fp8/fp8.h).
//   addend, out [m, n] float32 or bfloat16; addend is `out` or does not overlap it, and must be
//   `out` if beta is 0, when its content is ignored.
// rowwise: each row has its scale; otherwise a matrix's scales are equal, and the first is used.
// fast_accumulation: the tensor cores may add partial products with fewer bits than float32 has.
// Sums are float32 otherwise, and a bfloat16 result is rounded once. On the CPU operands are
// widened to float32, and fast_accumulation has no effect.
// CUDA: needs compute capability 8.9, rowwise 9.0 (cuBLASLt's outer vector scaling).
void scaled_gemm(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                 const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                 double beta, bool rowwise, bool fast_accumulation);

// Sizes that cuBLASLt multiplies: k and n are multiples of this.
inline constexpr int64_t kScaledGemmMultiple = 16;

void check_scaled_gemm(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                       const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                       double beta, bool rowwise, bool fast_accumulation);

}  // namespace fastsft
