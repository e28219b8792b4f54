#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "model/config.h"
#include "model/layout.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

using NamedShape = std::pair<std::string, std::vector<int64_t>>;

// model_type -> prefix of transformers' class names.
std::map<std::string, std::string> model_families() {
  std::map<std::string, std::string> prefixes;
  const auto& registry = FamilyRegistry::instance();
  for (const auto& name : registry.names()) prefixes[name] = registry.get(name).class_prefix;
  return prefixes;
}

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
  module.def("model_families", &model_families, py::call_guard<py::gil_scoped_release>(),
             "model_type to the prefix of transformers' class names.");
  module.def("count_parameters", &count_parameters, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>(),
             "ValueError for a configuration that the engine does not compute.");
  module.def("parameter_shapes", &parameter_shapes, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>(),
             "(name, shape) in the order of the units. ValueError as count_parameters.");
}

}  // namespace fastsft::bindings
