#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Returns the 256 levels of bitsandbytes' dynamic map (arXiv 1511.04561), ascending, float32 on the
// CPU: a dynamic exponent and a fraction. The powers of ten run from 1e-6 to 1, and each has twice
// as many levels as the power below. Zero and one are levels, too. With a sign, half of the levels
// are negative.
at::Tensor dynamic_levels(bool has_sign);

}  // namespace fastsft
