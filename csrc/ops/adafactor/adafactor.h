#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// transformers.optimization.Adafactor with scale_parameter and relative_step off and without a
// first moment, in float32, in four ops, so that ranks which hold parts of one tensor can add up
// between them. A tensor is matrices [rows, columns] one after the other; of a vector, `columns`
// elements, rows is 1 and what belongs to rows is absent. With g = grad * grad_scale and t = step
// of `scalars` (ops/gradient/step_scalars.h):
//   sums:    row_sums_i += sum over j of (g_ij^2 + 1e-30), column_sums_j likewise over i
//   moments: beta = 1 - t^-0.8
//            row_i = beta row_i + (1 - beta) row_sums_i / columns, column_j likewise with rows
//            row_sums_i = (row_i / mean of row)^-1/2, column_sums_j = column_j^-1/2: the factors
//   norm:    out += sum of u^2, u_ij = row factor_i * column factor_j * g_ij, formed in float64
//   update:  u = u / max(1, sqrt(norm / size))
//            p = p - lr * weight_decay * p - lr * u
// `grad`, `param` and `compute_copy` (as of ops/master/master.h) are elements [first, first +
// numel) of the tensor, flat; grad float32 or bfloat16. What belongs to rows and columns is of the
// whole tensor: float32 [matrices * rows] and [matrices * columns]. `norm` is [1] float64, `size`
// the number of the tensor's elements. When grad_scale is not finite, moments and update write
// nothing.
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
