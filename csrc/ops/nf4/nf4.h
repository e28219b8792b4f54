#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// 4-bit NormalFloat with double quantization, as in bitsandbytes (QLoRA, arXiv 2305.14314). A value
// is the nearest of 16 levels times its block's scale; the scale is the largest magnitude among the
// block's kNf4Block values. Scales are quantized, too: minus their mean, each is the nearest of 256
// levels times the largest magnitude in its group of kNf4ScaleGroup scales.
inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kNf4ScaleGroup = 256;  // blocks per group
// Bytes of a block: two levels per byte, the first in the upper half, then the level of the block's
// scale.
inline constexpr int64_t kNf4BlockBytes = kNf4Block / 2 + 1;
inline constexpr int64_t kNf4Levels = 16;
inline constexpr int64_t kNf4ScaleLevels = 256;

// Returns how many floats are stored with the bytes for `numel` values: the mean of the scales,
// then one magnitude per group.
int64_t nf4_scale_numel(int64_t numel);
// Returns float32 [kNf4Levels + kNf4ScaleLevels]: the levels for values, then for scales, each
// ascending.
at::Tensor nf4_levels(at::Device device);

// Quantizes `values` into packed [numel / kNf4Block, kNf4BlockBytes] uint8 and scales
// [nf4_scale_numel] float32. `values` is flat float32, bfloat16 or float16; its size is a multiple
// of kNf4Block. All tensors are on one device. Ties take the lower level. If a value is not finite,
// no dequantized value will be finite.
void nf4_quantize(const at::Tensor& values, const at::Tensor& packed, const at::Tensor& scales);

// Writes level * scale, rounded once, to out [numel] (float32, bfloat16 or float16). `levels` is
// the result of nf4_levels.
void nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& levels,
                    const at::Tensor& out);

void check_nf4_quantize(const at::Tensor& values, const at::Tensor& packed,
                        const at::Tensor& scales);
void check_nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales,
                          const at::Tensor& levels, const at::Tensor& out);

}  // namespace fastsft
