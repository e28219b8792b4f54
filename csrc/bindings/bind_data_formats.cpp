#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/data_inputs.h"
#include "chat/data_fault.h"
#include "chat/data_format.h"
#include "data/convert_data.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using WriteFunction = std::function<void(py::bytes)>;
using PollFunction = std::function<void(int64_t, int64_t)>;

std::function<void(const std::string&)> called(const WriteFunction& write) {
  return [&write](const std::string& text) {
    const py::gil_scoped_acquire held;
    write(py::bytes(text));
  };
}

ConvertSummary convert_inputs(const std::vector<PythonInput>& inputs, const std::string& format,
                              bool as_array, const WriteFunction& write,
                              const WriteFunction& write_bad,
                              const std::optional<PollFunction>& poll) {
  const auto poll_python = [&](const LabelProgress& progress) {
    const py::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (poll) (*poll)(progress.num_bytes, progress.num_records);
  };
  const ConvertOptions options{parse_written_format(format), as_array};
  const ConvertSink sink{called(write), called(write_bad), poll_python};
  const py::gil_scoped_release released;
  return convert_data(to_inputs(inputs), options, sink);
}

}  // namespace

void bind_data_formats(py::module_& module) {
  py::class_<DataFormat>(module, "DataFormat")
      .def_readonly("title", &DataFormat::title)
      .def_readonly("fields", &DataFormat::fields)
      .def_readonly("names", &DataFormat::names);
  module.def("data_formats", [] { return DataFormats::instance().names(); });
  module.def(
      "find_data_format",
      [](const std::string& name) -> const DataFormat& {
        return DataFormats::instance().get(name);
      },
      py::arg("name"), py::return_value_policy::reference);
  py::class_<ConvertSummary>(module, "ConvertSummary")
      .def_readonly("formats", &ConvertSummary::formats)
      .def_readonly("num_records", &ConvertSummary::num_records)
      .def_readonly("num_written", &ConvertSummary::num_written)
      .def_readonly("faults", &ConvertSummary::faults)
      .def_readonly("num_faults", &ConvertSummary::num_faults);
  module.def(
      "detect_data_format",
      [](const PythonInput& input) -> std::pair<std::string, std::string> {
        InputWalk walk(to_inputs({input}));
        InputChunk chunk;
        if (!walk.next(chunk)) return {"sharegpt", ""};
        return {chunk.format.name, chunk.format.column};
      },
      py::arg("input"), py::call_guard<py::gil_scoped_release>(),
      R"(The data format of an input, which is read in part: its name, and that of its list of messages
where it has one of its own, else "".)");
  module.def("convert_inputs", &convert_inputs, py::arg("inputs"), py::arg("format"),
             py::arg("as_array"), py::arg("write"), py::arg("write_bad"),
             py::arg("poll") = py::none(),
             R"(Records of any data format as ShareGPT or messages.

`format`: "sharegpt" or "messages". `as_array`: one JSON array, else a record a line. `write` takes the
bytes in order, `write_bad` lines as those of --report_bad for records that cannot be written.
ValueError for data in which no record can be found.)");
}

}  // namespace fastsft::bindings
