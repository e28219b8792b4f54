#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Rotates the first `num_heads` heads in every row, in place. With the halves (u, v) of a head:
//   u' = u cos - v sin,  v' = v cos + u sin        (inverse: the same with -sin)
//   x [tokens, width] float32, bfloat16 or float16 with width >= num_heads * head_dim, rows
//   contiguous; cos, sin [positions, head_dim / 2] float32; positions [tokens] int32, below
//   cos.size(0).
// The inverse is the backward pass.
void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& positions, int64_t num_heads, bool inverse);

void check_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                const at::Tensor& positions, int64_t num_heads, bool inverse);

}  // namespace fastsft
