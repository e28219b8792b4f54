#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "model/conversation_cost.h"
#include "train/allocation_meter.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

std::pair<double, double> cost_of(const std::string& config_json) {
  const PackCost cost = conversation_cost(parse_model_config(config_json));
  return {cost.linear, cost.quadratic};
}

}  // namespace

void bind_train_memory(py::module_& module) {
  module.def("conversation_cost", &cost_of, py::arg("config_json"));
  py::class_<AllocationMeter>(module, "AllocationMeter")
      .def_static("start", &AllocationMeter::start)
      .def_static("stop", &AllocationMeter::stop)
      .def_static("held", &AllocationMeter::held)
      .def_static("peak", &AllocationMeter::peak);
}

}  // namespace fastsft::bindings
