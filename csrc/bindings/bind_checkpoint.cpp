#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/bind.h"
#include "checkpoint/float_conversion.h"
#include "checkpoint/model_loader.h"
#include "checkpoint/model_ranges.h"
#include "checkpoint/save_model.h"
#include "checkpoint/saved_form.h"
#include "checkpoint/state_file.h"
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

// Returns (name, has weight decay) for each trained tensor, in state dict order.
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

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Written = std::pair<std::vector<FileDigest>, std::vector<RangeDigest>>;

StatePart live_part(Engine& engine) {
  engine.await_states();
  return part_to_write(engine.strategy(), engine.communicator());
}

ModelFilePlan model_plan(Engine& engine, const std::string& dtype, uint64_t max_shard_size) {
  return plan_model_files(state_dict_order(engine.strategy().states()),
                          {weight_dtype(dtype), max_shard_size, engine.saved_form()});
}

TensorSpec spec_of(const std::string& name, const std::string& dtype,
                   const std::vector<uint64_t>& shape) {
  const auto found = find_dtype(dtype);
  require(found.has_value(), name, ": expected a type of safetensors, got \"", dtype, "\"");
  return {name, *found, shape};
}

// A host copy of the bytes that one rank writes, together with its engine.
class EngineStaging {
 public:
  explicit EngineStaging(Engine& engine) : engine_(engine) {}

  int64_t nbytes() { return staging_bytes(live_part(engine_)); }
  void stage() { staging_.copy(live_part(engine_)); }
  Written write(const std::string& directory, const std::string& dtype, uint64_t max_shard_size,
                bool with_model, bool with_state) {
    WrittenPart part =
        write_part(direct_file_system(), directory, staging_.part(),
                   with_model ? model_plan(engine_, dtype, max_shard_size) : ModelFilePlan{},
                   with_state, Priority::kLow);
    return {std::move(part.files), std::move(part.ranges)};
  }

 private:
  Engine& engine_;
  StateStaging staging_;
};

uint64_t model_bytes(Engine& engine, const std::string& dtype, uint64_t max_shard_size) {
  return model_plan(engine, dtype, max_shard_size).bytes();
}

}  // namespace

void bind_checkpoint_parts(py::module_& module) {
  py::class_<EngineStaging>(module, "CheckpointStaging",
                            "A host copy of what this rank writes of a checkpoint.")
      .def(py::init<Engine&>(), "engine"_a, py::keep_alive<1, 2>())
      .def_property_readonly("nbytes", py::cpp_function(&EngineStaging::nbytes, Unlocked()),
                             "that the copy takes")
      .def("stage", &EngineStaging::stage, Unlocked(), "Copies what the engine holds now.")
      .def("write", &EngineStaging::write, "directory"_a, py::kw_only(), "dtype"_a,
           "max_shard_size"_a, "with_model"_a, "with_state"_a, Unlocked(),
           "Writes the copy as write_part does, while training goes on.");
  module.def(
      "write_part",
      [](Engine& engine, const std::string& directory, const std::string& dtype,
         uint64_t max_shard_size, bool with_model, bool with_state) -> Written {
        // Weights alone are written at the end of a run and are read back at once, so they go
        // through the page cache. A checkpoint is rarely read, so it bypasses the cache.
        FileSystem& file_system = with_state ? direct_file_system() : posix_file_system();
        WrittenPart part =
            write_part(file_system, directory, live_part(engine),
                       with_model ? model_plan(engine, dtype, max_shard_size) : ModelFilePlan{},
                       with_state, Priority::kNormal);
        return {std::move(part.files), std::move(part.ranges)};
      },
      "engine"_a, "directory"_a, py::kw_only(), "dtype"_a, "max_shard_size"_a, "with_model"_a,
      "with_state"_a, Unlocked(),
      "Writes this rank's bytes of the model's files and its training state, durable on return;\n"
      "not collective. Returns digests: (own files, ranges of the model's files).");
  module.def(
      "check_model_part",
      [](Engine& engine, const std::string& directory, const std::string& dtype,
         uint64_t max_shard_size) {
        check_model_ranges(directory, model_plan(engine, dtype, max_shard_size), live_part(engine));
      },
      "engine"_a, "directory"_a, py::kw_only(), "dtype"_a, "max_shard_size"_a, Unlocked(),
      "Reads this rank's bytes back. RuntimeError names the file and what differs.");
  module.def(
      "carry_from_file",
      [](Engine& engine, const std::string& name, const std::string& dtype,
         const std::vector<uint64_t>& shape, const std::string& path,
         uint64_t begin) { engine.saved_form().carry(spec_of(name, dtype, shape), path, begin); },
      "engine"_a, "name"_a, "dtype"_a, "shape"_a, "path"_a, "begin"_a,
      "Saved models have this tensor as well: bytes of `path` from `begin` on, as they are.");
  module.def(
      "carry_values",
      [](Engine& engine, const std::string& name, const std::string& dtype,
         const std::vector<uint64_t>& shape, const py::bytes& data) {
        engine.saved_form().carry(spec_of(name, dtype, shape), std::string(data));
      },
      "engine"_a, "name"_a, "dtype"_a, "shape"_a, "data"_a,
      "Saved models have this tensor as well.");
  module.def(
      "save_in_own_type",
      [](Engine& engine, const std::string& name, const std::string& dtype) {
        engine.saved_form().dtypes[name] = weight_dtype(dtype);
      },
      "engine"_a, "name"_a, "dtype"_a,
      "The tensor of this name is saved as float32, bfloat16 or float16, whatever the others are.");
  module.def("model_bytes", &model_bytes, "engine"_a, "dtype"_a, "max_shard_size"_a,
             "Of all files of the model together.");
}

}  // namespace fastsft::bindings
