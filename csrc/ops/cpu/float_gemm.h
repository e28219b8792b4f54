#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft::cpu {

// out = a b + beta * out for float32 matrices of any strides with one unit stride. oneDNN where
// torch has it (measured at twice the rate of MKL on AVX-512 machines of either maker), else
// torch's BLAS.
void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

}  // namespace fastsft::cpu
