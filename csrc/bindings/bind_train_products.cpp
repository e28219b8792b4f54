#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "ops/gemm/tuned_gemms.h"

namespace fastsft::bindings {

namespace py = pybind11;

void bind_train_products(py::module_& module) {
  module.def(
      "tuned_gemms", [] { return to_json(TunedGemms::instance().entries()); },
      "JSON array of this process's tuned products, by which it runs them on a GPU.");
  module.def(
      "set_tuned_gemms",
      [](const std::string& json) { TunedGemms::instance().set(parse_tuned_gemms(json)); },
      py::arg("json"), "Products run by these from here on. ValueError for another text.");
}

}  // namespace fastsft::bindings
