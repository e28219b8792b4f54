#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/bind.h"
#include "checkpoint/float_conversion.h"
#include "checkpoint/model_loader.h"
#include "checkpoint/save_model.h"
#include "checkpoint/state_dict_order.h"
#include "checkpoint/training_state.h"
#include "core/error.h"
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
                    {weight_dtype(dtype), max_shard_size, engine.saved_form()},
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

// (name, has weight decay) of what is trained, in the order of a Llama's state dict.
std::vector<std::pair<std::string, bool>> trained_order(Engine& engine) {
  std::vector<std::pair<std::string, bool>> order;
  for (const auto& place : state_dict_order(engine.strategy().states())) {
    if (!place.slot->held) order.emplace_back(place.slot->name, place.slot->decay);
  }
  return order;
}

void load_engine_state(Engine& engine, const std::string& directory) {
  engine.await_states();
  load_training_state(engine.strategy(), engine.communicator(), directory);
  engine.publish();
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def(
      "load_model", &load_engine_model, "engine"_a, "directory"_a, Unlocked(),
      "Reads the safetensors of a Hugging Face directory into the masters; collective. Returns\n"
      "what the user should know. ValueError for missing or unknown tensors and other shapes.");
  module.def(
      "save_model", &save_engine_model, "engine"_a, "directory"_a, py::kw_only(),
      "dtype"_a = "float32", "max_shard_size"_a = SaveOptions{}.max_shard_bytes,
      "writes"_a = py::none(), Unlocked(),
      "Writes the masters as files of a Hugging Face model; collective. dtype: float32,\n"
      "bfloat16 or float16; max_shard_size: bytes; writes: whether this rank does, None: rank 0.\n"
      "Returns digests of the files on the writers. All ranks raise when one fails.");
  module.def("stream_training_state", &stream_engine_state, "engine"_a, "directory"_a,
             py::kw_only(), "writes"_a = py::none(), Unlocked(),
             "Writes masters and optimizer state of all ranks as one file, durable on return; "
             "collective.");
  module.def("save_training_state", &save_engine_state, "engine"_a, "directory"_a, Unlocked(),
             "Writes masters and optimizer state of this rank, durable on return; not collective.");
  module.def(
      "load_training_state", &load_engine_state, "engine"_a, "directory"_a, Unlocked(),
      "Reads this rank's part from the files of any number of ranks, any strategy and other\n"
      "dtypes; collective. ValueError for missing files and another layout.");
  module.def("trained_order", &trained_order, "engine"_a, Unlocked(),
             "(name, has weight decay) of what is trained, in the order of transformers' Llama.");
  module.def("publish_weights", &Engine::publish, "engine"_a, Unlocked(),
             "What is computed with follows the masters; collective.");
  py::class_<ModelLoader>(module, "WeightLoader",
                          "Fills the masters of this rank, or a moment of AdamW, from whole\n"
                          "tensors; not collective.")
      .def(py::init([](Engine& engine, const std::string& target) {
             const py::gil_scoped_release released;
             engine.await_states();
             Strategy& strategy = engine.strategy();
             return std::make_unique<ModelLoader>(
                 target == ModelLoader::kMaster ? strategy.all_states() : strategy.states(),
                 target);
           }),
           "engine"_a, "target"_a = "master", py::keep_alive<1, 2>(),
           "target: master, exp_avg or exp_avg_sq; moments are those of what is trained.")
      .def("set", &ModelLoader::set_tensor, "name"_a, "tensor"_a, "where"_a, Unlocked(),
           "A contiguous tensor on the CPU; where: its file, for messages. ValueError for another\n"
           "shape or dtype.")
      .def("finish", &ModelLoader::finish, "where"_a, Unlocked(),
           "Names that were ignored on purpose. ValueError for missing and unknown tensors.");
}

}  // namespace fastsft::bindings
