#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// out += sum of x^2, formed in float64 in a fixed order.  x flat float32 or bfloat16, out [1]
// float64.
void norm_squared(const at::Tensor& x, const at::Tensor& out);

void check_norm_squared(const at::Tensor& x, const at::Tensor& out);

}  // namespace fastsft
