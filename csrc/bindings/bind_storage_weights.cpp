#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "core/error.h"
#include "storage/weight_files.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
void bind_storage_weights(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<WeightFiles>(module, "WeightFiles")
      .def(py::init([](std::string directory, std::vector<TensorSpec> state_dict,
                       std::vector<size_t> order, uint64_t max_shard_size) {
             return std::make_unique<WeightFiles>(posix_file_system(), std::move(directory),
                                                  std::move(state_dict), std::move(order),
                                                  max_shard_size);
           }),
           "directory"_a, "state_dict"_a, "order"_a, "max_shard_size"_a, Unlocked())
      .def(
          "write",
          [](WeightFiles& files, const py::buffer& data) {
            const py::buffer_info info = data.request();
            py::ssize_t expected = info.itemsize;
            for (auto i = info.ndim; i-- > 0;) {
              require(info.shape[i] <= 1 || info.strides[i] == expected,
                      "data: expected contiguous memory");
              expected *= info.shape[i];
            }
            const auto size = static_cast<size_t>(info.size * info.itemsize);
            const py::gil_scoped_release unlocked;
            files.write({static_cast<const std::byte*>(info.ptr), size});
          },
          "data"_a)
      .def("commit", &WeightFiles::commit, "total_parameters"_a, Unlocked())
      .def("discard", &WeightFiles::discard, Unlocked());
}

}  // namespace fastsft::bindings
