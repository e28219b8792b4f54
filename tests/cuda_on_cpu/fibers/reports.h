#pragma once

#include <string>

#include "fibers/kernel.h"

namespace cuda_on_cpu {

// Something that a device would not do, or not do in the same way twice. `kernel` of the launch.
void report(const std::string& text);
void set_kernel(const std::string& name);
std::string text_of(const Where& where);

}  // namespace cuda_on_cpu
