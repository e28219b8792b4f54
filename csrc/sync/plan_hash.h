#pragma once

#include <string>
#include <vector>

#include "sync/sync_plan.h"

namespace fastsft {

// FNV-1a with 128 bits over the tensors and the tied names, every part with its length before it.
std::string plan_hash(const std::vector<TensorSpec>& tensors, const std::vector<TiedName>& tied);

}  // namespace fastsft
