#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/arrays.h"
#include "bindings/bind.h"
#include "bindings/data_inputs.h"
#include "chat/data_format.h"
#include "chat/issue.h"
#include "data/convert_data.h"
#include "data/padded_rows.h"
#include "data/sampler.h"
#include "data/survey_data.h"
#include "data/token_dataset.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;
using Ids = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Spans = std::vector<std::pair<int32_t, int32_t>>;

void append(TokenDataset& self, const Ids& ids, const Spans& learned) {
  std::vector<TokenSpan> spans;
  for (const auto& [begin, end] : learned) spans.push_back({begin, end});
  self.append({ids.data(), static_cast<size_t>(ids.size())}, spans);
}

template <typename Number>
py::array_t<int64_t> collect(const TokenDataset& self, Number number) {
  py::array_t<int64_t> result(self.size());
  for (int64_t row = 0; row < self.size(); ++row) result.mutable_at(row) = number(row);
  return result;
}

py::array_t<int64_t> lengths(const TokenDataset& self) {
  return collect(self, [&](int64_t row) { return self.length(row); });
}

py::array_t<int64_t> target_counts(const TokenDataset& self) {
  return collect(self, [&](int64_t row) { return self.num_targets(row); });
}

py::array_t<int64_t> label_counts(const TokenDataset& self) {
  return collect(self, [&](int64_t row) { return self.num_labels(row); });
}

py::array_t<int64_t> labels_of(const TokenDataset& self, int64_t row) {
  const std::vector<int32_t> labels = self.labels(row);
  py::array_t<int64_t> result(static_cast<py::ssize_t>(labels.size()));
  std::copy(labels.begin(), labels.end(), result.mutable_data());
  return result;
}

// Returns how many masked tokens were removed from the row's start.
int64_t leading(const TokenDataset& self, int64_t row) {
  const GeneralRow* general = self.general(row);
  return general == nullptr ? 0 : general->leading;
}

// Returns each row's length, including the masked tokens removed from its start.
py::array_t<int64_t> extents(const TokenDataset& self) {
  return collect(self, [&](int64_t row) { return leading(self, row) + self.length(row); });
}

using Flags = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;

RowNeeds append_item(TokenDataset& self, const IntArray& ids, const IntArray& labels,
                     const std::optional<IntArray>& positions, const std::optional<Flags>& mask,
                     bool has_mask, int64_t row) {
  Item item{.ids = view(ids), .labels = view(labels), .has_mask = has_mask || mask};
  if (positions) item.positions = view(*positions);
  if (mask) item.mask = std::span(mask->data(), static_cast<size_t>(mask->size()));
  return fastsft::append_item(self, item, row);
}

IntArray order(int64_t size, int64_t seed, int64_t epoch) {
  std::vector<int64_t> rows;
  {
    py::gil_scoped_release release;
    rows = epoch_order(size, seed, epoch);
  }
  return IntArray(static_cast<py::ssize_t>(rows.size()), rows.data());
}

std::vector<IntArray> batches(const IntArray& order, int64_t batch_size, int64_t rank,
                              int64_t world_size, bool drop_last) {
  const auto rows = view(order);
  std::vector<std::vector<int64_t>> lists;
  {
    py::gil_scoped_release release;
    lists = rank_micro_batches(rows, rank, {batch_size, world_size, drop_last});
  }
  std::vector<IntArray> arrays;
  for (auto& array : to_arrays(lists)) arrays.push_back(std::move(array));
  return arrays;
}

void bind_dataset(py::module_& module) {
  py::class_<RowNeeds>(module, "RowNeeds")
      .def_readonly("masked_query", &RowNeeds::masked_query)
      .def_readonly("blind_query", &RowNeeds::blind_query)
      .def_readonly("packing", &RowNeeds::packing);
  py::class_<TokenDataset>(module, "TokenDataset")
      .def(py::init<>())
      .def("__len__", &TokenDataset::size)
      .def("append", &append, py::arg("ids"), py::arg("learned"))
      .def("append_item", &append_item, py::arg("ids"), py::arg("labels"),
           py::arg("positions") = py::none(), py::arg("mask") = py::none(), py::kw_only(),
           py::arg("has_mask") = false, py::arg("row"))
      .def(
          "ids",
          [](const TokenDataset& self, int64_t row) {
            const auto ids = self.ids(row);
            return py::array_t<int32_t>(static_cast<py::ssize_t>(ids.size()), ids.data());
          },
          py::arg("row"))
      .def("labels", &labels_of, py::arg("row"))
      .def("leading", &leading, py::arg("row"))
      .def(
          "learned",
          [](const TokenDataset& self, int64_t row) {
            Spans spans;
            for (const TokenSpan& span : self.learned(row)) {
              spans.emplace_back(span.begin, span.end);
            }
            return spans;
          },
          py::arg("row"))
      .def("length", &TokenDataset::length, py::arg("row"))
      .def("num_targets", &TokenDataset::num_targets, py::arg("row"))
      .def("lengths", &lengths)
      .def("extents", &extents)
      .def("target_counts", &target_counts)
      .def("label_counts", &label_counts)
      .def("num_packed", &TokenDataset::num_packed)
      .def(
          "first_misplaced",
          [](const TokenDataset& self,
             bool targets_only) -> std::optional<std::pair<int64_t, bool>> {
            const auto found = first_misplaced(self, targets_only);
            if (!found) return std::nullopt;
            return std::pair(found->row, found->begins_masked);
          },
          py::arg("targets_only"))
      .def("checksum", &TokenDataset::checksum)
      .def_property("masked_id", &TokenDataset::masked_id, &TokenDataset::set_masked_id)
      .def_property_readonly("max_id", &TokenDataset::max_id)
      .def_property_readonly("is_mapped", &TokenDataset::is_mapped)
      .def_property_readonly("num_tokens", &TokenDataset::num_tokens);
  module.def("count_shared_rows", &count_shared_rows, py::arg("rows"), py::arg("others"),
             py::call_guard<py::gil_scoped_release>(),
             "How many rows from which something is learned are rows of `others`, too.");
}

}  // namespace

void bind_data(py::module_& module) {
  bind_dataset(module);
  module.def("epoch_order", &order, py::arg("size"), py::arg("seed"), py::arg("epoch"));
  module.def(
      "micro_batch_count",
      [](int64_t size, int64_t batch_size, int64_t world_size, bool drop_last) {
        return micro_batch_count(size, {batch_size, world_size, drop_last});
      },
      py::arg("size"), py::arg("batch_size"), py::arg("world_size") = 1,
      py::arg("drop_last") = false);
  module.def("rank_micro_batches", &batches, py::arg("order"), py::arg("batch_size"),
             py::arg("rank") = 0, py::arg("world_size") = 1, py::arg("drop_last") = false);
  module.def(
      "reference_group",
      [](const IntArray& order, int64_t step, int64_t accumulation, int64_t batch_size,
         int64_t world_size, bool drop_last) {
        return reference_group(view(order), step, accumulation,
                               {batch_size, world_size, drop_last});
      },
      py::arg("order"), py::arg("step"), py::arg("accumulation"), py::arg("batch_size"),
      py::arg("world_size") = 1, py::arg("drop_last") = false);
}

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
                               // Text is returned as bytes, because UTF-8 cannot encode lone
                               // surrogates.
                               std::vector<std::pair<py::bytes, py::bytes>> messages;
                               for (const Message& message : self.conversation.messages) {
                                 messages.emplace_back(message.from.text, message.value.text);
                               }
                               return messages;
                             })
      .def_readonly("explanation", &SurveyedRecord::explanation)
      .def_readonly("rows", &SurveyedRecord::rows)
      .def_property_readonly("json",
                             [](const SurveyedRecord& self) { return py::bytes(self.json); });
}

}  // namespace

void bind_data_survey(py::module_& module) {
  py::class_<SurveyChoice>(module, "SurveyChoice")
      .def(py::init([](int64_t count, std::optional<uint64_t> seed, std::optional<std::string> id,
                       std::optional<std::string> only, bool whole) {
             SurveyChoice choice{count, seed, std::move(id), std::move(only), whole};
             choice.check();
             return choice;
           }),
           py::kw_only(), py::arg("count") = 5, py::arg("seed") = py::none(),
           py::arg("id") = py::none(), py::arg("only") = py::none(), py::arg("whole") = false);
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
