#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft::cpu {

// out = a b + beta * out for float32 matrices of any strides with one unit stride. oneDNN where
// torch has it (measured at twice the rate of MKL on AVX-512 machines of either maker), else
// torch's BLAS.
void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

// The same for bfloat16 operands and result: sums in float32, rounded once. Only where
// takes_bfloat16() says that the processor multiplies bfloat16 itself (AVX512-BF16) and torch's
// oneDNN may be used.
void bfloat16_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);
bool takes_bfloat16();

}  // namespace fastsft::cpu
