#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "checkpoint/model_loader.h"
#include "core/error.h"
#include "model/adapters.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/rope_table.h"
#include "model/text_decoder.h"
#include "shard/state_options.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

using NamedShape = std::pair<std::string, std::vector<int64_t>>;

// Returns the prefix of transformers' class names for each model_type.
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

// Returns (name, hash, element count, tensors) for each unit; a tensor is (name, shape, offset).
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

// Returns the rotary frequency of each pair of a head, the factor for cosine and sine, and the
// number of positions for which the frequencies hold (0 if unlimited).
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

namespace {

namespace py = pybind11;
using namespace pybind11::literals;

using Unlocked = py::call_guard<py::gil_scoped_release>;

c10::ScalarType float_dtype(const std::string& given) {
  for (const auto& [name, dtype] : option_names(c10::ScalarType::Float)) {
    if (given == name) return dtype;
  }
  throw_invalid("dtype: expected float32, bfloat16 or float16, got ", given);
}

at::Tensor read(TextDecoder& self, const IntArray& ids) {
  const auto tokens = view(ids);
  const py::gil_scoped_release unlocked;
  return self.read(tokens);
}

}  // namespace

void bind_model_decoder(py::module_& module) {
  py::class_<TextDecoder>(
      module, "TextDecoder",
      "A model of a native family that continues one text; keys and values are kept.")
      .def(py::init([](const std::string& config_json, const std::string& dtype,
                       const std::string& device) {
             return std::make_unique<TextDecoder>(parse_model_config(config_json),
                                                  float_dtype(dtype), at::Device(device));
           }),
           "config_json"_a, py::kw_only(), "dtype"_a = "float32", "device"_a = "cpu", Unlocked(),
           "config_json: text of config.json. dtype: float32 or bfloat16. ValueError for a family\n"
           "or a setting that has no native form.")
      .def(
          "load",
          [](TextDecoder& self, const std::string& directory) {
            const auto states = self.states();
            return read_model({states.begin(), states.end()}, directory);
          },
          "directory"_a, Unlocked(),
          "Read the safetensors weights of a model directory, on this rank alone. Returns\n"
          "sentences that the user should see. ValueError when they do not fit the config.")
      .def(
          "loader",
          [](TextDecoder& self) {
            const auto states = self.states();
            return std::make_unique<ModelLoader>(
                std::vector<UnitState>{states.begin(), states.end()});
          },
          py::keep_alive<0, 1>(), "A WeightLoader of its weights, instead of `load`.")
      .def(
          "read", &read, "ids"_a,
          "Read token ids (int64 [n], n >= 1) after those before. Returns the logits of the next\n"
          "token, float32 [vocab_size] on the device. ValueError for an id outside the vocabulary.")
      .def("truncate", &TextDecoder::truncate, "length"_a,
           "Forget all but the first `length` tokens. ValueError when there are fewer.")
      .def_property_readonly("length", &TextDecoder::length, "Number of tokens read.");
}

namespace {

namespace py = pybind11;

template <typename Value>
py::object equals(const Value& self, const py::object& other) {
  return py::bool_(py::isinstance<Value>(other) && self == other.cast<Value>());
}

std::string representation(const AdapterLinear& self) {
  return py::str("AdapterLinear(module={!r}, rank={!r}, scale={!r})")
      .format(self.module, self.rank, self.scale);
}

std::string representation(const AdapterOptions& self) {
  return py::str("AdapterOptions(linears={!r}, dropout={!r}, trained={!r})")
      .format(self.linears, self.dropout, self.trained);
}

}  // namespace

void bind_model_adapters(py::module_& module) {
  py::class_<AdapterLinear>(module, "AdapterLinear",
                            "A low-rank adapter of a linear module: scale * dropout(x) A^T B^T.")
      .def(py::init([](const std::string& name, int64_t rank, double scale) {
             return AdapterLinear{name, rank, scale};
           }),
           py::arg("module"), py::kw_only(), py::arg("rank"), py::arg("scale"))
      .def_readonly("module", &AdapterLinear::module, "\"model.layers.0.self_attn.q_proj\"")
      .def_readonly("rank", &AdapterLinear::rank)
      .def_readonly("scale", &AdapterLinear::scale)
      .def("__eq__", &equals<AdapterLinear>)
      .def("__repr__", [](const AdapterLinear& self) { return representation(self); });
  py::class_<AdapterOptions>(module, "AdapterOptions",
                             "What is trained next to a frozen model; empty: the whole model, "
                             "without adapters. Never changes.")
      .def(py::init([](const std::vector<AdapterLinear>& linears, double dropout,
                       const std::vector<std::string>& trained) {
             return AdapterOptions{linears, dropout, trained};
           }),
           py::kw_only(), py::arg("linears") = std::vector<AdapterLinear>(),
           py::arg("dropout") = 0.0, py::arg("trained") = std::vector<std::string>())
      .def_readonly("linears", &AdapterOptions::linears)
      .def_readonly("dropout", &AdapterOptions::dropout, "of what adapters read")
      .def_readonly("trained", &AdapterOptions::trained,
                    "names of the model's parameters that are trained, too")
      .def("__bool__", [](const AdapterOptions& self) { return !self.empty(); })
      .def("__eq__", &equals<AdapterOptions>)
      .def("__repr__", [](const AdapterOptions& self) { return representation(self); });
}

}  // namespace fastsft::bindings
