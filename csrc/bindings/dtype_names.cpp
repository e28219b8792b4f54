#include "bindings/dtype_names.h"

#include "core/error.h"

namespace fastsft::bindings {

c10::ScalarType float_dtype(const char* option, const std::string& name) {
  require(name == "float32" || name == "bfloat16", option, " is \"", name,
          "\", expected \"float32\" or \"bfloat16\"");
  return name == "float32" ? c10::ScalarType::Float : c10::ScalarType::BFloat16;
}

bool is_split(const std::string& name) {
  require(name == "float32" || name == "split", "master_dtype is \"", name,
          "\", expected \"float32\" or \"split\"");
  return name == "split";
}

}  // namespace fastsft::bindings
