#include "bindings/bind.h"

namespace fastsft::bindings {

void bind_core(pybind11::module_& module) {
  module.attr("torch_version") = FASTSFT_TORCH_VERSION;
  module.attr("with_cuda") = static_cast<bool>(FASTSFT_WITH_CUDA);
}

}  // namespace fastsft::bindings
