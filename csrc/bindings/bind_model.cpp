#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/rope_table.h"

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

DecoderLayout layout_of(const std::string& config_json, const AdapterOptions& adapters) {
  return DecoderLayout(parse_model_config(config_json), adapters);
}

int64_t count_parameters(const std::string& config_json, const AdapterOptions& adapters) {
  return layout_of(config_json, adapters).num_parameters();
}

int64_t count_trained_parameters(const std::string& config_json, const AdapterOptions& adapters) {
  return layout_of(config_json, adapters).num_trained_parameters();
}

std::vector<NamedShape> parameter_shapes(const std::string& config_json) {
  const DecoderLayout layout(parse_model_config(config_json));
  std::vector<NamedShape> shapes;
  for (const auto& unit : layout.units()) {
    for (const auto& slot : unit.slots()) shapes.emplace_back(slot.name, slot.shape);
  }
  return shapes;
}

using NamedPlace = std::tuple<std::string, std::vector<int64_t>, int64_t>;
using Unit = std::tuple<std::string, std::string, int64_t, std::vector<NamedPlace>>;

// Of each unit its name, hash, elements, and the tensors in it with shape and first element.
std::vector<Unit> unit_layouts(const std::string& config_json, const AdapterOptions& adapters) {
  const DecoderLayout layout = layout_of(config_json, adapters);
  std::vector<Unit> units;
  for (const auto& unit : layout.units()) {
    std::vector<NamedPlace> places;
    for (const auto& slot : unit.slots()) places.emplace_back(slot.name, slot.shape, slot.offset);
    units.emplace_back(unit.name(), unit.hash(), unit.numel(), std::move(places));
  }
  return units;
}

// Of each pair of a head; the factor of cosine and sine; positions up to which they hold, 0: all.
std::tuple<std::vector<float>, double, int64_t> rotary_frequencies(const std::string& config_json) {
  const ModelConfig config = parse_model_config(config_json);
  const at::Tensor frequencies = fastsft::rotary_frequencies(config.rope, config.head_dim);
  const float* first = frequencies.const_data_ptr<float>();
  return {std::vector<float>(first, first + frequencies.numel()),
          config.rope.scaling.attention_factor, config.rope.scaling.most_positions};
}

}  // namespace

void bind_model(py::module_& module) {
  module.def("model_families", &model_families, py::call_guard<py::gil_scoped_release>(),
             "model_type to the prefix of transformers' class names.");
  module.def("count_parameters", &count_parameters, py::arg("config_json"), py::kw_only(),
             py::arg_v("adapters", AdapterOptions(), "AdapterOptions()"),
             py::call_guard<py::gil_scoped_release>(),
             "ValueError for a configuration that the engine does not compute.");
  module.def("count_trained_parameters", &count_trained_parameters, py::arg("config_json"),
             py::kw_only(), py::arg_v("adapters", AdapterOptions(), "AdapterOptions()"),
             py::call_guard<py::gil_scoped_release>(), "Those of them that are trained.");
  module.def("rotary_frequencies", &rotary_frequencies, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>(),
             "Of each pair, the factor of cosine and sine, most positions (0: any). "
             "ValueError as count_parameters.");
  module.def("parameter_shapes", &parameter_shapes, py::arg("config_json"),
             py::call_guard<py::gil_scoped_release>(),
             "(name, shape) in the order of the units. ValueError as count_parameters.");
  module.def(
      "unit_layouts", &unit_layouts, py::arg("config_json"), py::kw_only(),
      py::arg_v("adapters", AdapterOptions(), "AdapterOptions()"),
      py::call_guard<py::gil_scoped_release>(),
      "Units of what is trained with the places of their tensors. ValueError as count_parameters.");
}

}  // namespace fastsft::bindings
