#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// transformers.optimization.Adafactor without scale_parameter, relative_step and first moment, in
// float32. It is split into four ops so that ranks with parts of one tensor can add up their sums
// in between. A tensor is a sequence of matrices [rows, columns]. For a vector with `columns`
// elements, `rows` is 1 and the row arguments are absent. With g = grad * grad_scale and t = step
// of `scalars` (ops/gradient/step_scalars.h):
//   sums:    row_sums_i += sum over j of (g_ij^2 + 1e-30)
//            column_sums_j += sum over i of (g_ij^2 + 1e-30)
//   moments: beta = 1 - t^-0.8
//            row_i = beta row_i + (1 - beta) row_sums_i / columns
//            column_j = beta column_j + (1 - beta) column_sums_j / rows
//            then the sums are overwritten with factors:
//            row_sums_i = (row_i / mean of row)^-1/2, column_sums_j = column_j^-1/2
//   norm:    out += sum of u^2, u_ij = row factor_i * column factor_j * g_ij, summed in float64
//   update:  u = u / max(1, sqrt(norm / size))
//            p = p - lr * weight_decay * p - lr * u
// `grad` (float32 or bfloat16), `param` and `compute_copy` (ops/master/master.h) are the flat
// elements [first, first + numel) of the tensor. Row and column arguments cover the whole tensor:
// float32 [matrices * rows] and [matrices * columns]. `norm` is [1] float64, and `size` is the
// tensor's element count. If grad_scale is not finite, moments and update write nothing.
using OptionalTensor = std::optional<at::Tensor>;

void adafactor_sums(const at::Tensor& grad, const at::Tensor& scalars,
                    const OptionalTensor& row_sums, const at::Tensor& column_sums, int64_t first,
                    int64_t rows, int64_t columns);
void adafactor_moments(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                       const OptionalTensor& row, const at::Tensor& column,
                       const at::Tensor& scalars, int64_t rows, int64_t columns);
void adafactor_norm(const at::Tensor& grad, const at::Tensor& scalars,
                    const OptionalTensor& row_factors, const at::Tensor& column_factors,
                    const at::Tensor& out, int64_t first, int64_t rows, int64_t columns);
void adafactor_update(const at::Tensor& param, const OptionalTensor& compute_copy,
                      const at::Tensor& grad, const at::Tensor& scalars,
                      const OptionalTensor& row_factors, const at::Tensor& column_factors,
                      const at::Tensor& norm, int64_t size, double lr, double weight_decay,
                      int64_t first, int64_t rows, int64_t columns);

inline constexpr float kAdafactorEps = 1e-30f;
inline constexpr double kAdafactorDecay = -0.8;

void check_adafactor_sums(const at::Tensor& grad, const at::Tensor& scalars,
                          const OptionalTensor& row_sums, const at::Tensor& column_sums,
                          int64_t first, int64_t rows, int64_t columns);
void check_adafactor_moments(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                             const OptionalTensor& row, const at::Tensor& column,
                             const at::Tensor& scalars, int64_t rows, int64_t columns);
void check_adafactor_norm(const at::Tensor& grad, const at::Tensor& scalars,
                          const OptionalTensor& row_factors, const at::Tensor& column_factors,
                          const at::Tensor& out, int64_t first, int64_t rows, int64_t columns);
void check_adafactor_update(const at::Tensor& param, const OptionalTensor& compute_copy,
                            const at::Tensor& grad, const at::Tensor& scalars,
                            const OptionalTensor& row_factors, const at::Tensor& column_factors,
                            const at::Tensor& norm, int64_t size, double lr, double weight_decay,
                            int64_t first, int64_t rows, int64_t columns);

}  // namespace fastsft
