#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace fastsft::bindings {

namespace py = pybind11;

void bind_optim(py::module_& module) {
  py::class_<Schedule>(module, "Schedule", "Learning rates by step.")
      .def(py::init([](const std::string& name, double learning_rate, int64_t warmup_steps,
                       int64_t total_steps, const ScheduleOptions& options) {
             return Schedule(name, {learning_rate, warmup_steps, total_steps, options});
           }),
           py::arg("name"), py::kw_only(), py::arg("learning_rate"), py::arg("warmup_steps"),
           py::arg("total_steps"), py::arg("options") = ScheduleOptions{},
           "learning_rate: the peak. ValueError for an unknown name or option, or a bad value.")
      .def("rate", &Schedule::rate, py::arg("step"), "Of the 0-based optimizer step.");
  module.def(
      "optimizers", [] { return OptimizerRegistry::instance().names(); },
      "Names of optimizers, sorted: StateOptions.optimizer.");
  module.def(
      "schedule_names", [] { return ScheduleRegistry::instance().names(); },
      "All of them, sorted.");
}

}  // namespace fastsft::bindings
