#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace fastsft::cpu {

// How a product [m, k] x [k, n] of bfloat16 or float16 operands is widened to float32: the smaller
// operand whole, the larger one in blocks of `step` of its rows (or columns), which stay in the
// result.
struct WidenedProduct {
  bool by_columns;  // of the second operand
  int64_t step;
};
WidenedProduct widened_product(int64_t m, int64_t k, int64_t n);

// What that takes of `Scratch`; `narrow_out`: the result is not float32.
int64_t widened_floats(int64_t m, int64_t k, int64_t n, bool narrow_out);

// What gemm takes of it on this processor for operands that are not float32; `out`: the result's
// dtype, theirs or float32.
int64_t gemm_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out);

}  // namespace fastsft::cpu
