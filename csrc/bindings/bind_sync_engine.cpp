#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bind.h"
#include "core/error.h"
#include "sync/whole_unit.h"
#include "train/engine.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
namespace {

std::vector<std::pair<std::string, at::Tensor>> gather_unit(Engine& engine, size_t unit,
                                                            bool master) {
  require(unit < engine.units().size(), "unit ", unit, " of ", engine.units().size());
  engine.await_states();
  const at::Tensor flat =
      whole_unit(engine.strategy(), unit, master ? UnitValues::kMaster : UnitValues::kCompute);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& slot : engine.units()[unit].slots()) {
    tensors.emplace_back(slot.name, flat.narrow(0, slot.offset, slot.numel()).view(slot.shape));
  }
  return tensors;
}

std::vector<std::vector<std::pair<std::string, std::vector<int64_t>>>> unit_tensors(
    const Engine& engine) {
  std::vector<std::vector<std::pair<std::string, std::vector<int64_t>>>> units;
  for (const auto& unit : engine.units()) {
    auto& tensors = units.emplace_back();
    for (const auto& slot : unit.slots()) tensors.emplace_back(slot.name, slot.shape);
  }
  return units;
}

// Of what forward reads.
std::string compute_dtype(Engine& engine) {
  const auto range = engine.strategy().compute_range(0);
  const auto dtype = range ? range->scalar_type() : at::kFloat;
  for (const auto& [name, one] : option_names(dtype)) {
    if (one == dtype) return name;
  }
  throw_runtime("a compute dtype without a name");
}

}  // namespace

void bind_sync_engine(py::module_& module) {
  module.def("gather_unit", &gather_unit, "engine"_a, "unit"_a, py::kw_only(), "master"_a,
             py::call_guard<py::gil_scoped_release>());
  module.def("compute_dtype", &compute_dtype, "engine"_a);
  module.def("unit_tensors", &unit_tensors, "engine"_a);
}

}  // namespace fastsft::bindings
