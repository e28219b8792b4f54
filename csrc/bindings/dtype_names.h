#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace fastsft::bindings {

// What options call dtypes; std::invalid_argument for other names.

c10::ScalarType float_dtype(const char* option, const std::string& name);
// Of master_dtype.
bool is_split(const std::string& name);

}  // namespace fastsft::bindings
