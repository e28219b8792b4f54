#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// NormalFloat of 4 bits with double quantisation, as bitsandbytes has it (QLoRA, arXiv 2305.14314).
// A block of kNf4Block values is the nearest of 16 levels times its scale, the largest magnitude in
// it. The scales of a tensor, less their mean, are the nearest of 256 levels times the largest
// magnitude of kNf4ScaleGroup of them.
inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kNf4ScaleGroup = 256;  // blocks
// Of a block: two levels a byte, the first one in the upper half, then the level of its scale.
inline constexpr int64_t kNf4BlockBytes = kNf4Block / 2 + 1;
inline constexpr int64_t kNf4Levels = 16;
inline constexpr int64_t kNf4ScaleLevels = 256;

// Floats that go with the bytes of `numel` values: the mean of the scales, then that of each group.
int64_t nf4_scale_numel(int64_t numel);
// float32 [kNf4Levels + kNf4ScaleLevels]: both kinds of levels, ascending.
at::Tensor nf4_levels(at::Device device);

// packed [numel / kNf4Block, kNf4BlockBytes] uint8 and scales [nf4_scale_numel] float32 receive
// `values` (flat, float32, bfloat16 or float16, a multiple of kNf4Block of them), all on one
// device. Of two levels that are as near the lower one is taken. A value that is not finite leaves
// none that is.
void nf4_quantize(const at::Tensor& values, const at::Tensor& packed, const at::Tensor& scales);

// out [numel], float32, bfloat16 or float16, receives level * scale, rounded once. `levels` is
// nf4_levels.
void nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& levels,
                    const at::Tensor& out);

void check_nf4_quantize(const at::Tensor& values, const at::Tensor& packed,
                        const at::Tensor& scales);
void check_nf4_dequantize(const at::Tensor& packed, const at::Tensor& scales,
                          const at::Tensor& levels, const at::Tensor& out);

}  // namespace fastsft
