#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "model/config.h"
#include "model/layout.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

using NamedShape = std::pair<std::string, std::vector<int64_t>>;

std::vector<std::string> model_families() { return FamilyRegistry::instance().names(); }

int64_t count_parameters(const std::string& config_json) {
  return DecoderLayout(parse_model_config(config_json)).num_parameters();
}

std::vector<NamedShape> parameter_shapes(const std::string& config_json) {
  const DecoderLayout layout(parse_model_config(config_json));
  std::vector<NamedShape> shapes;
  for (const auto& unit : layout.units()) {
    for (const auto& slot : unit.slots()) shapes.emplace_back(slot.name, slot.shape);
  }
  return shapes;
}

}  // namespace

void bind_model(py::module_& module) {
  module.def("model_families", &model_families, py::call_guard<py::gil_scoped_release>());
  module.def("count_parameters", &count_parameters, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>());
  module.def("parameter_shapes", &parameter_shapes, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace fastsft::bindings
