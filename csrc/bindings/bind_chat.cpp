#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <tuple>

#include "bindings/bind.h"
#include "chat/data_report.h"
#include "core/error.h"
#include "data/padded_rows.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

std::tuple<py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<bool>> padded_rows(
    const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width, int32_t pad_id,
    bool mask_by_length) {
  require(0 <= begin && begin <= end && end <= dataset.size(), "rows [", begin, ", ", end,
          ") are not in a data set of ", dataset.size());
  const std::array<py::ssize_t, 2> shape = {end - begin, width};
  py::array_t<int64_t> ids(shape), labels(shape);
  py::array_t<bool> mask(shape);
  const PaddedRows to{ids.mutable_data(), labels.mutable_data(), mask.mutable_data()};
  {
    const py::gil_scoped_release released;
    fill_padded_rows(dataset, begin, end, width, pad_id,
                     mask_by_length ? MaskRule::kLength : MaskRule::kNotPad, to);
  }
  return {std::move(ids), std::move(labels), std::move(mask)};
}

std::map<std::string, DataReport::Entry> entries(const DataReport& self) {
  std::map<std::string, DataReport::Entry> result;
  for (size_t i = 0; i < kNumIssues; ++i) {
    const auto remark = static_cast<Issue>(i);
    if (self.entry(remark).count > 0) result[name_of(remark)] = self.entry(remark);
  }
  return result;
}

std::map<std::string, int64_t> actions(const DataReport::Entry& self) {
  std::map<std::string, int64_t> result;
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    if (self.by_action[i] > 0) result[name_of(static_cast<Outcome>(i))] = self.by_action[i];
  }
  return result;
}

std::vector<std::string> warnings(const DataReport& self) {
  std::vector<std::string> lines;
  for (const auto& warning : self.warnings()) lines.push_back(fastchat_warning(warning.mismatch));
  return lines;
}

std::vector<int64_t> dropped(const DataReport& self) {
  std::vector<int64_t> records;
  for (const auto& warning : self.warnings()) records.push_back(warning.record);
  return records;
}

}  // namespace

void bind_chat(py::module_& module) {
  py::class_<RecordError>(module, "RecordError")
      .def_property_readonly("kind", [](const RecordError& self) { return name_of(self.kind); })
      .def_readonly("record", &RecordError::record)
      .def_readonly("message", &RecordError::message)
      .def_property_readonly("remark", [](const RecordError& self) { return name_of(self.remark); })
      .def_readonly("file", &RecordError::file)
      .def_readonly("line", &RecordError::line)
      .def_readonly("byte", &RecordError::byte)
      .def_readonly("excerpt", &RecordError::excerpt)
      .def_readonly("always_stops", &RecordError::always_stops)
      .def("__str__", &RecordError::what);
  py::class_<DataReport::Entry>(module, "ReportEntry")
      .def_readonly("count", &DataReport::Entry::count)
      .def_readonly("first", &DataReport::Entry::first)
      .def_readonly("reason", &DataReport::Entry::reason)
      .def_property_readonly("actions", &actions);
  py::class_<DataReport::FormatUse>(module, "FormatUse")
      .def_readonly("name", &DataReport::FormatUse::name)
      .def_readonly("title", &DataReport::FormatUse::title)
      .def_property_readonly(
          "column", [](const DataReport::FormatUse& self) { return printable(self.column); })
      .def_readonly("num_records", &DataReport::FormatUse::count)
      .def_property_readonly("unused", [](const DataReport::FormatUse& self) {
        std::vector<std::string> names;
        for (const std::string& name : self.unused) names.push_back(printable(name));
        return names;
      });
  py::class_<DataReport>(module, "DataReport")
      .def_property_readonly("num_records", &DataReport::num_records)
      .def_property_readonly("num_tokens", &DataReport::num_tokens)
      .def_property_readonly("num_learned", &DataReport::num_learned)
      .def_property_readonly("num_dropped", &DataReport::num_dropped)
      .def_property_readonly("num_without_labels", &DataReport::num_without_labels)
      .def_property_readonly("num_kept", &DataReport::num_kept)
      .def_property_readonly("num_excluded", &DataReport::num_excluded)
      .def_property_readonly("num_whole", &DataReport::num_whole)
      .def_property_readonly("num_salvaged", &DataReport::num_salvaged)
      .def_property_readonly("num_truncated", &DataReport::num_truncated)
      .def_property_readonly("entries", &entries)
      .def_property_readonly("dropped", &dropped)
      .def_property_readonly("warnings", &warnings)
      .def_property_readonly("formats", [](const DataReport& self) { return self.formats(); })
      .def("summary", &DataReport::summary)
      .def("to_json", &DataReport::to_json)
      .def("append", &DataReport::append, py::arg("next"))
      .def_static("from_json", &DataReport::from_json, py::arg("text"));
  module.def("padded_rows", &padded_rows, py::arg("dataset"), py::arg("begin"), py::arg("end"),
             py::arg("width"), py::arg("pad_id"), py::arg("mask_by_length") = false);
}

}  // namespace fastsft::bindings
