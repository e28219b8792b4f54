#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

inline constexpr int64_t kQuantBlock = 256;
inline constexpr int64_t kQuantLevels = 256;
inline constexpr float kLeastScale = 1e-38f;

// float32 [4, 256] on `device`: the levels of both dynamic maps (ops/dynamic_levels.h), each
// followed by the bounds between them, the last one infinite: with a sign of the first moment,
// without of the second.
at::Tensor adamw8bit_levels(at::Device device);

// One step of bitsandbytes' AdamW8bit over elements [first, first + numel) of a tensor, whose
// moments are codes in blocks of 256 elements from the tensor's first one on, in float32:
//   m = level(state1) * absmax1,  v = level(state2) * absmax2
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,  g = grad * grad_scale
//   p = p (1 - lr * weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   absmax = the largest magnitude of the block; code: the number of bounds below m / absmax
//   state1, state2 uint8, as many as grad; absmax1, absmax2 float32, one of each block that has an
//   element here; levels of adamw8bit_levels. Masters, gradients and scalars as of adamw
//   (ops/master/master.h).
// Of a block that is cut, `first_edge` and `last_edge` (float32 [2], of m and v) have the largest
// magnitudes of the whole block, of which adamw8bit_maxima gives those of a part.
// When grad_scale is not finite nothing is written.
void adamw8bit(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
               const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
               const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t first, const std::optional<at::Tensor>& first_edge,
               const std::optional<at::Tensor>& last_edge);

// maxima [2] = max(maxima, the largest |m| and v that the step will give elements of one block).
void adamw8bit_maxima(const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                      const at::Tensor& absmax1, const at::Tensor& absmax2,
                      const at::Tensor& levels, const at::Tensor& scalars, double beta1,
                      double beta2, const at::Tensor& maxima);

void check_adamw8bit(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                     const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                     const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
                     const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                     double weight_decay, int64_t first,
                     const std::optional<at::Tensor>& first_edge,
                     const std::optional<at::Tensor>& last_edge);
void check_adamw8bit_maxima(const at::Tensor& grad, const at::Tensor& state1,
                            const at::Tensor& state2, const at::Tensor& absmax1,
                            const at::Tensor& absmax2, const at::Tensor& levels,
                            const at::Tensor& scalars, double beta1, double beta2,
                            const at::Tensor& maxima);

}  // namespace fastsft
