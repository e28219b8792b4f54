#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft::cpu {

// out = a b + beta * out for float32 matrices of any strides, of which one must be 1. Uses oneDNN
// if torch has it (twice as fast as MKL on Intel and AMD machines with AVX-512), otherwise torch's
// BLAS. Also accepts bfloat16 operands and result if takes_bfloat16() is true; sums are then
// float32 and are rounded once.
void float_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);
bool takes_bfloat16();

// out = a b + beta * out for operands of float32, bfloat16 or float16, and a result of that dtype
// or float32; what ops/gemm/gemm.h computes on the CPU. Takes up to gemm_floats from `Scratch`.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

// The same for products whose number of rows is nearly always new, which oneDNN would compile each
// time. On Intel's processors torch's BLAS computes float32 products: there it took 0.8 times as
// long for 64 to 512 rows. On AMD's it is half as fast as oneDNN.
void multiply_once(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

// The way in which a product [m, k] x [k, n] of bfloat16 or float16 operands is widened to float32.
// The smaller operand is widened whole, the larger one in blocks of `step` rows (or columns).
// `narrow_out`: the result is not float32, and its blocks are widened, too.
struct WidenedProduct {
  bool by_columns;  // blocks are columns of the second operand, not rows of the first
  int64_t step;
};
WidenedProduct widened_product(int64_t m, int64_t k, int64_t n, bool narrow_out);

// Returns how many floats a widened product takes from `Scratch`.
int64_t widened_floats(int64_t m, int64_t k, int64_t n, bool narrow_out);

// Returns how many floats gemm takes from `Scratch` on this processor for bfloat16 or
// float16 operands. `out` is the result's dtype: the operands' dtype or float32.
int64_t gemm_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out);

}  // namespace fastsft::cpu
