#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/dtype.h"

namespace fastsft {

// Returns true for dtypes of weights that can be loaded: F32, F16, BF16 and F64. F64 cannot be
// written.
bool is_readable_weight(DType dtype);

// Returns the dtype for "float32", "bfloat16" or "float16". Throws std::invalid_argument for other
// names.
DType weight_dtype(const std::string& name);

// Converts values to float32. `from` may be unaligned. Exact for F32, F16 and BF16; F64 is rounded
// to nearest.
void read_floats(DType dtype, const std::byte* from, std::span<float> to);

// Converts values to `dtype`, rounding to nearest even. Throws std::invalid_argument for a finite
// value that F16 cannot hold.
std::vector<std::byte> write_floats(DType dtype, std::span<const float> from);

}  // namespace fastsft
