#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// The 256 levels of bitsandbytes' dynamic map, ascending, float32 on the CPU: a dynamic exponent
// and a fraction (arXiv 1511.04561). Ten to the minus six up to one, each power with twice as many
// levels as the one before; zero and one. With a sign half of them are negative.
at::Tensor dynamic_levels(bool has_sign);

}  // namespace fastsft
