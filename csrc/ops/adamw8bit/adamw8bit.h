#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

inline constexpr int64_t kQuantBlock = 256;
inline constexpr int64_t kQuantLevels = 256;
inline constexpr float kLeastScale = 1e-38f;

// Returns float32 [4, 256] on `device`: for the first moment the signed dynamic map
// (ops/dynamic_levels.h) and the bounds between its levels, then the same rows for the second
// moment, whose map is unsigned. The last bound of each map is infinite.
at::Tensor adamw8bit_levels(at::Device device);

// Does one step of bitsandbytes' AdamW8bit on elements [first, first + numel) of a tensor, in
// float32. The moments are 8-bit codes in blocks of 256 elements, counted from the tensor's first
// element:
//   m = level(state1) * absmax1,  v = level(state2) * absmax2
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,  g = grad * grad_scale
//   p = p (1 - lr * weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   absmax = the largest magnitude of the block; code: how many bounds are below m / absmax
//   state1, state2 uint8, shaped like grad; absmax1, absmax2 float32, one value per block that has
//   an element here; `levels` from adamw8bit_levels. Masters, gradients and scalars as for adamw
//   (ops/master/master.h).
// If the range cuts its first or last block, `first_edge` or `last_edge` (float32 [2], for m and v)
// holds the largest magnitudes of the whole block. adamw8bit_maxima computes them for each part of
// a block. If grad_scale is not finite, nothing is written.
void adamw8bit(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
               const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
               const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t first, const std::optional<at::Tensor>& first_edge,
               const std::optional<at::Tensor>& last_edge);

// Raises maxima [2] to the largest |m| and v that the next step will give one block's elements.
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
