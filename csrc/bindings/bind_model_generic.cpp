#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bind.h"
#include "bindings/python_model.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

using NamedTensor = std::tuple<std::string, std::vector<int64_t>, bool, bool, bool, bool, int64_t>;
using NamedUnit = std::pair<std::string, std::vector<std::vector<NamedTensor>>>;
using Place = std::tuple<std::string, std::vector<int64_t>, int64_t>;

std::vector<ParamUnit> units_of(const std::vector<NamedUnit>& named) {
  std::vector<ParamUnit> units;
  for (const auto& [unit_name, parameters] : named) {
    std::vector<ParamGroup> groups;
    for (const auto& tensors : parameters) {
      ParamGroup& group = groups.emplace_back();
      for (const auto& [name, shape, decay, adapter, held, embedding, file_order] : tensors) {
        group.slots.push_back({.name = name,
                               .shape = shape,
                               .decay = decay,
                               .adapter = adapter,
                               .held = held,
                               .embedding = embedding,
                               .file_order = file_order});
      }
    }
    units.emplace_back(unit_name, std::move(groups));
  }
  return units;
}

// Returns for each unit the name, shape and offset of its tensors.
std::vector<std::vector<Place>> places_of(const std::vector<ParamUnit>& of) {
  std::vector<std::vector<Place>> units;
  for (const ParamUnit& unit : of) {
    auto& places = units.emplace_back();
    for (const auto& slot : unit.slots()) places.emplace_back(slot.name, slot.shape, slot.offset);
  }
  return units;
}

void bind_units(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<UnitAccess>(module, "UnitAccess",
                         "The flat units of a called model; valid during the call only.")
      .def_property_readonly("replicated", &UnitAccess::replicated,
                             "Every rank has all units whole, all the time.")
      .def("gather", &UnitAccess::gather, py::arg("unit"), Unlocked(),
           "The whole flat parameters, valid until `release`; collective.")
      .def("prefetch", &UnitAccess::prefetch, py::arg("unit"), Unlocked(),
           "Starts gathering; collective.")
      .def("release", &UnitAccess::release, py::arg("unit"), Unlocked())
      .def("gradient", &UnitAccess::gradient, py::arg("unit"), Unlocked(),
           "The whole flat gradient, float32, to write into until `reduce`.")
      .def("adds_to_gradient", &UnitAccess::begin_write, py::arg("unit"), py::arg("offset"),
           "Whether the next write at offset adds to what is there; asked once a write.")
      .def("reduce", &UnitAccess::reduce, py::arg("unit"), py::arg("places"), Unlocked(),
           "The unit's gradient is complete; of places (offset, elements), those that nothing was\n"
           "written to become zero. Collective.")
      .def_property_readonly(
          "frozen_by_ranges", &UnitAccess::frozen_by_ranges,
          "Units that nothing updates are whole between gather and release only.")
      .def("gather_frozen", &UnitAccess::gather_frozen, py::arg("unit"), Unlocked(),
           "As `gather`, of what nothing updates.")
      .def("prefetch_frozen", &UnitAccess::prefetch_frozen, py::arg("unit"), Unlocked(),
           "As `prefetch`.")
      .def("release_frozen", &UnitAccess::release_frozen, py::arg("unit"), Unlocked());
}

}  // namespace

void bind_model_generic(py::module_& module) {
  py::class_<Batch>(module, "Batch",
                    "A micro-batch without padding, on the device: conversations end to end.")
      .def_readonly("input_ids", &Batch::input_ids, "[tokens] int64")
      .def_readonly("positions", &Batch::positions, "[tokens] int32; restart at each conversation")
      .def_readonly("cu_seqlens", &Batch::cu_seqlens, "[conversations + 1] int32")
      .def_readonly("boundaries", &Batch::boundaries, "cu_seqlens on the host, as a list")
      .def_readonly("is_key", &Batch::is_key, "[tokens] uint8, or [0] where all are keys")
      .def_readonly("label_positions", &Batch::label_positions, "[labels] int64")
      .def_readonly("targets", &Batch::targets, "[labels] int64")
      .def_readonly("token_weights", &Batch::token_weights, "[labels] float32")
      .def_readonly("max_seqlen", &Batch::max_seqlen, "the longest conversation");
  bind_units(module);
  py::class_<PythonModelMaker>(module, "GenericModel",
                               "A model whose forward and backward are called in Python.")
      .def(py::init([](const std::vector<NamedUnit>& units, const std::vector<NamedUnit>& frozen,
                       int64_t vocab_size, int64_t embedding_parameters, py::object calls) {
             return PythonModelMaker{
                 {units_of(units), units_of(frozen), vocab_size, embedding_parameters},
                 std::move(calls)};
           }),
           py::kw_only(), py::arg("units"), py::arg("frozen"), py::arg("vocab_size"),
           py::arg("embedding_parameters"), py::arg("calls"),
           "units: (name, parameters), the first one whole throughout a micro-batch. A parameter:\n"
           "its tensors end to end, (name, shape, decays, is_adapter, is_held, is_embedding,\n"
           "file_order), the last their number in files; adapters are in no file of the model, "
           "held\n"
           "ones keep their values. frozen: the same of what nothing updates. calls: has\n"
           "forward_backward, forward_loss and logits (csrc/bindings/python_model.h).")
      .def_property_readonly(
          "places", [](const PythonModelMaker& self) { return places_of(self.layout.units); },
          "Of every unit the tensors: (name, shape, first element).")
      .def_property_readonly(
          "frozen_places",
          [](const PythonModelMaker& self) { return places_of(self.layout.frozen); },
          "The same of `frozen`.");
}

}  // namespace fastsft::bindings
