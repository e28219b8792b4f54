#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

using OptionalTensor = std::optional<at::Tensor>;

// sum = x + residual;  out = sum * rstd * (offset + weight);  rstd = 1 / sqrt(mean(sum^2) + eps),
// rows of `hidden`. An offset of 1 is Gemma's norm.
//   x, residual, sum, out [tokens, hidden] float32, bfloat16 or float16, weight [hidden] of the
//   same dtype, rstd [tokens] float32. Without a residual `sum` is not written and x replaces it.
// Arithmetic in float32. Overwrites sum, out and rstd; sum may be x or residual.
void rms_norm(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
              double eps, const OptionalTensor& sum, const at::Tensor& out, const at::Tensor& rstd,
              double offset = 0);

// Computes rms_norm, and fp8_quantize (ops/fp8/fp8.h) of its result with a scale for each row, bit
// for bit.
//   x bfloat16, values [tokens, hidden] float8_e4m3fn, scales [tokens] float32.
// `out` is undefined afterwards unless `keep` is set; without it a GPU does not write it.
void rms_norm_fp8(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                  double eps, const OptionalTensor& sum, const at::Tensor& out,
                  const at::Tensor& rstd, const at::Tensor& values, const at::Tensor& scales,
                  bool power_of_2, bool keep, double offset = 0);

// With n = x * rstd and g = grad_out * (offset + weight):
//   grad_x += rstd * (g - n * mean(g * n))
//   grad_weight = beta * grad_weight + sum over tokens of grad_out * n          (float32)
// grad_x has the dtype of x. Deterministic for a given thread count. If `grad_weight` is absent,
// only grad_x is computed. With `recompute`, grad_out is overwritten by rms_norm's `out`, bit for
// bit.
void rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& grad_x,
                       const OptionalTensor& grad_weight, double beta, bool recompute = false,
                       double offset = 0);

void check_rms_norm(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                    double eps, const OptionalTensor& sum, const at::Tensor& out,
                    const at::Tensor& rstd, double offset);
void check_rms_norm_fp8(const at::Tensor& x, const OptionalTensor& residual,
                        const at::Tensor& weight, double eps, const OptionalTensor& sum,
                        const at::Tensor& out, const at::Tensor& rstd, const at::Tensor& values,
                        const at::Tensor& scales, bool power_of_2, bool keep, double offset);
void check_rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& x,
                             const at::Tensor& weight, const at::Tensor& rstd,
                             const at::Tensor& grad_x, const OptionalTensor& grad_weight,
                             double beta, bool recompute, double offset);

}  // namespace fastsft
