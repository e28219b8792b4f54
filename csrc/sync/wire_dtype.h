#pragma once

#include <string>

#include "storage/dtype.h"

namespace fastsft {

// Rollout engines write "bfloat16" or "torch.bfloat16" where files write "BF16"; all three name the
// same type. std::invalid_argument for a name that none of them uses, or that torch does not have.
DType parse_wire_dtype(const std::string& name);

// torch's name without its prefix: "bfloat16". Only for what `parse_wire_dtype` returned.
std::string torch_dtype_name(DType dtype);

}  // namespace fastsft
