#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "bindings/bind.h"
#include "checkpoint/load_model.h"
#include "checkpoint/model_loader.h"
#include "checkpoint/save_model.h"
#include "checkpoint/tensor_source.h"
#include "checkpoint/training_state.h"
#include "train/engine.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

std::vector<std::string> load_engine_model(Engine& engine, const std::string& directory) {
  engine.await_states();
  auto notes = load_model(engine.strategy(), engine.communicator(), directory);
  engine.publish();
  return notes;
}

std::vector<FileDigest> save_engine_model(Engine& engine, const std::string& directory,
                                          const std::string& dtype, uint64_t max_shard_size,
                                          std::optional<bool> writes) {
  engine.await_states();
  return save_model(engine.strategy(), engine.communicator(), directory,
                    {weight_dtype(dtype), max_shard_size},
                    {writes.has_value(), writes.value_or(false)});
}

std::vector<FileDigest> stream_engine_state(Engine& engine, const std::string& directory,
                                            std::optional<bool> writes) {
  engine.await_states();
  return stream_training_state(engine.strategy(), engine.communicator(), directory,
                               {writes.has_value(), writes.value_or(false)});
}

FileDigest save_engine_state(Engine& engine, const std::string& directory) {
  engine.await_states();
  return save_training_state(posix_file_system(),
                             part_to_write(engine.strategy(), engine.communicator()), directory);
}

void load_engine_state(Engine& engine, const std::string& directory) {
  engine.await_states();
  load_training_state(engine.strategy(), engine.communicator(), directory);
  engine.publish();
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def("load_model", &load_engine_model, "engine"_a, "directory"_a, Unlocked());
  module.def("save_model", &save_engine_model, "engine"_a, "directory"_a, py::kw_only(),
             "dtype"_a = "float32", "max_shard_size"_a = SaveOptions{}.max_shard_bytes,
             "writes"_a = py::none(), Unlocked());
  module.def("stream_training_state", &stream_engine_state, "engine"_a, "directory"_a,
             py::kw_only(), "writes"_a = py::none(), Unlocked());
  module.def("save_training_state", &save_engine_state, "engine"_a, "directory"_a, Unlocked());
  module.def("load_training_state", &load_engine_state, "engine"_a, "directory"_a, Unlocked());
  module.def("publish_weights", &Engine::publish, "engine"_a, Unlocked());
  py::class_<ModelLoader>(module, "WeightLoader")
      .def(py::init([](Engine& engine) {
             return std::make_unique<ModelLoader>(engine.strategy().states());
           }),
           "engine"_a, py::keep_alive<1, 2>())
      .def("set", &set_tensor, "name"_a, "tensor"_a, "where"_a, Unlocked())
      .def("finish", &ModelLoader::finish, "where"_a, Unlocked());
}

}  // namespace fastsft::bindings
