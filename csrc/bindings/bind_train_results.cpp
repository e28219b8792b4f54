#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "core/trace.h"
#include "train/state_digest.h"
#include "train/step_results.h"

namespace fastsft::bindings {

namespace py = pybind11;

void bind_train_results(py::module_& module) {
  py::class_<StepResult>(module, "StepResult", "Of one optimizer step, over all ranks.")
      .def_readonly("loss", &StepResult::loss, "sum of weight * cross entropy")
      .def_readonly("grad_norm", &StepResult::grad_norm, "L2 norm before clipping")
      .def_readonly("finite", &StepResult::finite, "False: nothing was updated");

  py::class_<ReplayDigests>(module, "ReplayDigests",
                            "CRC-32C of two computations of one step on this rank: (first, second)")
      .def_property_readonly(
          "own",
          [](const ReplayDigests& self) { return std::pair(self.first.own, self.second.own); },
          "of the loss and what the rank gave to the sums over ranks")
      .def_property_readonly(
          "reduced",
          [](const ReplayDigests& self) {
            return std::pair(self.first.reduced, self.second.reduced);
          },
          "of gradients after their reduction");
  py::class_<UnitDigest>(module, "UnitDigest", "CRC-32C of one unit.")
      .def_readonly("unit", &UnitDigest::unit, "name")
      .def_readonly("shard", &UnitDigest::shard, "ranks with the same one hold the same state")
      .def_readonly("state", &UnitDigest::state, "of master and optimizer state of this rank")
      .def_readonly("parameters", &UnitDigest::parameters, "of the whole unit in use");

  py::class_<trace::RecordedSpan>(module, "RecordedSpan", "Work between two times.")
      .def_property_readonly(
          "track", [](const trace::RecordedSpan& span) { return trace::track_name(span.track); })
      .def_readonly("name", &trace::RecordedSpan::name)
      .def_readonly("began", &trace::RecordedSpan::began)
      .def_readonly("ended", &trace::RecordedSpan::ended)
      .def_readonly("begin_ns", &trace::RecordedSpan::begin_ns)
      .def_readonly("end_ns", &trace::RecordedSpan::end_ns);
  module.def(
      "trace_dropped", [] { return trace::Recorder::instance().dropped(); },
      "Spans of the last trace that newer ones pushed out.");
}

}  // namespace fastsft::bindings
