#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// What every optimizer's op takes as `param` and `compute_copy`, flat tensors of one size.
// `compute_copy` receives the parameters rounded to nearest: bfloat16 with ties away from zero,
// float16 with ties to even. `param` is the float32 master, or (int16) the lower 16 bits of a split
// one whose upper half is `compute_copy` (bfloat16): master bits = (copy << 16) + sign-extended
// param, the same bits as the unsplit.

// ValueError: they are not of one device, dtype or size as above.
void check_master(const char* op, const at::Tensor& param,
                  const std::optional<at::Tensor>& compute_copy);

}  // namespace fastsft
