#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft {

// out = beta * out + x * keep / (1 - p), where each element is kept with probability 1 - p.
//   x, out [tokens, width] float32, bfloat16 or float16 of one dtype, contiguous; keys [tokens]
//   int32; 0 <= p < 1. If beta is 0, the old content of `out` is ignored.
// The mask depends only on seed, key, `stream` and column. Its random words come from Philox4x32-10
// with the seed as key and (column / 4, key, stream, 0) as counter. An element is dropped if its
// word is below p * 2^32.
void dropout(const at::Tensor& x, const at::Tensor& keys, double p, int64_t seed, int64_t stream,
             const at::Tensor& out, double beta);

void check_dropout(const at::Tensor& x, const at::Tensor& keys, double p, int64_t seed,
                   int64_t stream, const at::Tensor& out, double beta);

// Returns the smallest random word for which an element is kept.
inline uint32_t first_kept_word(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace fastsft
