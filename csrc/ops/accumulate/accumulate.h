#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// total += x for flat contiguous tensors of one size; the sum is formed in float32 and rounded to
// total's dtype (float32 or bfloat16) once, to nearest. `x` is float32.
void accumulate(const at::Tensor& total, const at::Tensor& x);

void check_accumulate(const at::Tensor& total, const at::Tensor& x);

}  // namespace fastsft
