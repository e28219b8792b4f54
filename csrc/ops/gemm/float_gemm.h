#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft::cpu {

// out = a b + beta * out for float32 matrices of any strides with one unit stride. oneDNN where
// torch has it (measured at twice the rate of MKL on AVX-512 machines of either maker), else
// torch's BLAS.
// Also for bfloat16 operands and result, with sums in float32 that are rounded once, but only where
// takes_bfloat16() says that the processor multiplies bfloat16 itself (AVX512-BF16) and torch's
// oneDNN may be used.
void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);
bool takes_bfloat16();

// How a product [m, k] x [k, n] of bfloat16 or float16 operands is widened to float32: the smaller
// operand whole, the larger one in blocks of `step` of its rows (or columns), which stay in the
// result. `narrow_out`: the result is not float32, and its blocks are widened, too.
struct WidenedProduct {
  bool by_columns;  // of the second operand
  int64_t step;
};
WidenedProduct widened_product(int64_t m, int64_t k, int64_t n, bool narrow_out);

// What that takes of `Scratch`.
int64_t widened_floats(int64_t m, int64_t k, int64_t n, bool narrow_out);

// What gemm takes of it on this processor for operands that are not float32; `out`: the result's
// dtype, theirs or float32.
int64_t gemm_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out);

}  // namespace fastsft::cpu
