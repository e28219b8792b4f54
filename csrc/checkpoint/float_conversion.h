#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/dtype.h"

namespace fastsft {

// Types in which weights are stored: F32, F16, BF16; F64 is read only.
bool is_readable_weight(DType dtype);

// "float32", "bfloat16" or "float16"; std::invalid_argument for other names.
DType weight_dtype(const std::string& name);

// `from` may be at any address. Exact for F32, F16 and BF16; F64 is rounded to nearest.
void read_floats(DType dtype, const std::byte* from, std::span<float> to);

// Rounds to nearest even. A finite value that F16 cannot hold is std::invalid_argument.
std::vector<std::byte> write_floats(DType dtype, std::span<const float> from);

}  // namespace fastsft
