#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bind.h"
#include "sync/row_group.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {

void bind_sync_rows(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  using Tensors = std::vector<at::Tensor>;
  module.def(
      "pack_rows",
      [](const Tensors& rows, const std::vector<Shape>& shapes, int64_t rank, int64_t world_size) {
        return pack_rows(rows, shapes, rank, world_size);
      },
      "rows"_a, "shapes"_a, "rank"_a, "world_size"_a, Unlocked());
  module.def(
      "join_rows",
      [](const at::Tensor& gathered, const Tensors& rows, const std::vector<Shape>& shapes,
         int64_t world_size) { return join_rows(gathered, rows, shapes, world_size); },
      "gathered"_a, "rows"_a, "shapes"_a, "world_size"_a, Unlocked());
}

}  // namespace fastsft::bindings
