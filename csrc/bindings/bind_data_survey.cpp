#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/data_inputs.h"
#include "data/survey_data.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using PollFunction = std::function<void(int64_t, int64_t)>;

Survey survey_inputs(const std::vector<PythonInput>& inputs, const Labeller& labeller,
                     const SurveyChoice& choice, const std::optional<PollFunction>& poll) {
  const auto poll_python = [&](const LabelProgress& progress) {
    const py::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (poll) (*poll)(progress.num_bytes, progress.num_records);
  };
  return survey_data(to_inputs(inputs), labeller, choice, poll_python);
}

void bind_surveyed(py::module_& module) {
  py::class_<SurveyedRecord>(module, "SurveyedRecord")
      .def_readonly("file", &SurveyedRecord::file)
      .def_property_readonly(
          "id", [](const SurveyedRecord& self) { return py::bytes(self.conversation.id); })
      .def_property_readonly("number",
                             [](const SurveyedRecord& self) { return self.conversation.number; })
      .def_property_readonly("line",
                             [](const SurveyedRecord& self) { return self.conversation.line; })
      .def_property_readonly("byte",
                             [](const SurveyedRecord& self) { return self.conversation.byte; })
      .def_property_readonly("messages",
                             [](const SurveyedRecord& self) {
                               // Bytes: a lone surrogate in the data is none that UTF-8 can hold.
                               std::vector<std::pair<py::bytes, py::bytes>> messages;
                               for (const Message& message : self.conversation.messages) {
                                 messages.emplace_back(message.from.text, message.value.text);
                               }
                               return messages;
                             })
      .def_readonly("explanation", &SurveyedRecord::explanation);
}

}  // namespace

void bind_data_survey(py::module_& module) {
  py::class_<SurveyChoice>(module, "SurveyChoice")
      .def(py::init([](int64_t count, std::optional<uint64_t> seed, std::optional<std::string> id,
                       std::optional<std::string> only) {
             SurveyChoice choice{count, seed, std::move(id), std::move(only)};
             choice.check();
             return choice;
           }),
           py::kw_only(), py::arg("count") = 5, py::arg("seed") = py::none(),
           py::arg("id") = py::none(), py::arg("only") = py::none());
  bind_surveyed(module);
  py::class_<Survey>(module, "Survey")
      .def_property_readonly("report", [](const Survey& self) { return self.summary.report; })
      .def_property_readonly("faults", [](const Survey& self) { return self.summary.faults; })
      .def_property_readonly("num_faults",
                             [](const Survey& self) { return self.summary.num_faults; })
      .def_readonly("lengths", &Survey::lengths)
      .def_readonly("learned", &Survey::learned)
      .def_readonly("num_matching", &Survey::num_matching)
      .def_readonly("chosen", &Survey::chosen);
  module.def("survey_inputs", &survey_inputs, py::arg("inputs"), py::arg("labeller"),
             py::arg("choice"), py::arg("poll") = py::none(),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace fastsft::bindings
