#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
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

py::array_t<int32_t> ids_of(const TokenDataset& self, int64_t row) {
  const auto ids = self.ids(row);
  return py::array_t<int32_t>(static_cast<py::ssize_t>(ids.size()), ids.data());
}

Spans learned_of(const TokenDataset& self, int64_t row) {
  Spans spans;
  for (const TokenSpan& span : self.learned(row)) spans.emplace_back(span.begin, span.end);
  return spans;
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

}  // namespace

void bind_data(py::module_& module) {
  py::class_<TokenDataset>(module, "TokenDataset")
      .def(py::init<>())
      .def("__len__", &TokenDataset::size)
      .def("append", &append, py::arg("ids"), py::arg("learned"))
      .def("ids", &ids_of, py::arg("row"))
      .def("learned", &learned_of, py::arg("row"))
      .def("length", &TokenDataset::length, py::arg("row"))
      .def("num_targets", &TokenDataset::num_targets, py::arg("row"))
      .def("lengths", &lengths)
      .def("target_counts", &target_counts)
      .def_property_readonly("num_tokens", &TokenDataset::num_tokens);
}

}  // namespace fastsft::bindings
