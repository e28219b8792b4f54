#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "checkpoint/model_loader.h"
#include "core/error.h"
#include "model/text_decoder.h"
#include "shard/state_options.h"

namespace fastsft::bindings {
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

}  // namespace fastsft::bindings
