#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Quantises matrices to 8-bit floats for scaled_gemm (ops/gemm/scaled_gemm.h). A value becomes
// x * factor, rounded to nearest even, where factor = limit / amax. `limit` is the largest finite
// number of out's dtype: 448 of float8_e4m3fn, 57,344 of float8_e5m2. `amax` is the largest
// magnitude, at least 1e-12, so zeros stay zeros. With `power_of_2` the factor is rounded down to a
// power of two, so that a scale adds no rounding. `scales` get 1 / factor, which undoes the
// quantisation. A matrix or row with a value that is not finite gets an infinite scale, and its
// product is not finite either. The rules for finite values are torchao's.

// Writes x [rows, columns] to out [rows, columns] and scales [rows].
//   x float32 or bfloat16, out float8_e4m3fn or float8_e5m2, scales float32; all contiguous.
//   rowwise: amax of each row; otherwise amax of the matrix, and all scales are equal.
void fp8_quantize(const at::Tensor& x, bool rowwise, bool power_of_2, const at::Tensor& out,
                  const at::Tensor& scales);

// Writes x [rows, columns] transposed to out [columns, width] and scales [columns]: the copy that
// cuBLASLt needs of an operand whose rows a product adds up. `width` is at least `rows`, and the
// elements behind them become zeros.
//   rowwise: each row of `out`, which is a column of x, has its amax; otherwise the matrix has one.
void fp8_quantize_transposed(const at::Tensor& x, bool rowwise, bool power_of_2,
                             const at::Tensor& out, const at::Tensor& scales);

// Largest finite numbers.
inline constexpr double kE4m3Limit = 448.0, kE5m2Limit = 57344.0;
inline constexpr double kLeastAmax = 1e-12;

void check_fp8_quantize(const at::Tensor& x, bool rowwise, bool power_of_2, const at::Tensor& out,
                        const at::Tensor& scales);
void check_fp8_quantize_transposed(const at::Tensor& x, bool rowwise, bool power_of_2,
                                   const at::Tensor& out, const at::Tensor& scales);

// Checks the copy in e4m3, with a scale for each row, that another op writes of its result `x`.
void check_fp8_rows(const char* op, const at::Tensor& x, const at::Tensor& values,
                    const at::Tensor& scales);

}  // namespace fastsft
