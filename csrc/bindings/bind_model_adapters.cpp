#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "model/adapters.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

template <typename Value>
py::object equals(const Value& self, const py::object& other) {
  return py::bool_(py::isinstance<Value>(other) && self == other.cast<Value>());
}

std::string representation(const AdapterLinear& self) {
  return py::str("AdapterLinear(module={!r}, rank={!r}, scale={!r})")
      .format(self.module, self.rank, self.scale);
}

std::string representation(const AdapterOptions& self) {
  return py::str("AdapterOptions(linears={!r}, dropout={!r}, trained={!r})")
      .format(self.linears, self.dropout, self.trained);
}

}  // namespace

void bind_model_adapters(py::module_& module) {
  py::class_<AdapterLinear>(module, "AdapterLinear",
                            "A low-rank adapter of a linear module: scale * dropout(x) A^T B^T.")
      .def(py::init([](const std::string& name, int64_t rank, double scale) {
             return AdapterLinear{name, rank, scale};
           }),
           py::arg("module"), py::kw_only(), py::arg("rank"), py::arg("scale"))
      .def_readonly("module", &AdapterLinear::module, "\"model.layers.0.self_attn.q_proj\"")
      .def_readonly("rank", &AdapterLinear::rank)
      .def_readonly("scale", &AdapterLinear::scale)
      .def("__eq__", &equals<AdapterLinear>)
      .def("__repr__", [](const AdapterLinear& self) { return representation(self); });
  py::class_<AdapterOptions>(module, "AdapterOptions",
                             "What is trained next to a frozen model; empty: the whole model, "
                             "without adapters. Never changes.")
      .def(py::init([](const std::vector<AdapterLinear>& linears, double dropout,
                       const std::vector<std::string>& trained) {
             return AdapterOptions{linears, dropout, trained};
           }),
           py::kw_only(), py::arg("linears") = std::vector<AdapterLinear>(),
           py::arg("dropout") = 0.0, py::arg("trained") = std::vector<std::string>())
      .def_readonly("linears", &AdapterOptions::linears)
      .def_readonly("dropout", &AdapterOptions::dropout, "of what adapters read")
      .def_readonly("trained", &AdapterOptions::trained,
                    "names of the model's parameters that are trained, too")
      .def("__bool__", [](const AdapterOptions& self) { return !self.empty(); })
      .def("__eq__", &equals<AdapterOptions>)
      .def("__repr__", [](const AdapterOptions& self) { return representation(self); });
}

}  // namespace fastsft::bindings
