#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bind.h"
#include "core/error.h"
#include "sync/shared_memory.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  require(tensor.is_cpu() && tensor.is_contiguous(),
          "shared memory: expected a contiguous tensor on the CPU");
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Tensors of operations that were given up. As long as this holds them, the backend's thread is not
// the last to let go of one: torch then asks for the interpreter, and a process that ends is
// aborted.
struct HeldTensors {
  std::vector<at::Tensor> tensors;
};

}  // namespace

void bind_sync_memory(py::module_& module) {
  py::class_<HeldTensors>(module, "HeldTensors")
      .def(
          py::init([](std::vector<at::Tensor> tensors) { return HeldTensors{std::move(tensors)}; }),
          "tensors"_a);
  py::class_<SharedMemory>(module, "SharedMemory")
      .def(py::init<const std::string&, size_t, size_t, uint64_t>(), "name"_a, "rank"_a, "size"_a,
           "slot_bytes"_a, Unlocked())
      .def("meet", &SharedMemory::meet, "deadline_s"_a, Unlocked())
      .def(
          "broadcast",
          [](SharedMemory& memory, const at::Tensor& tensor, double deadline_s) {
            memory.broadcast(bytes_of(tensor), deadline_s);
          },
          "tensor"_a, "deadline_s"_a, Unlocked())
      .def(
          "all_gather",
          [](SharedMemory& memory, const at::Tensor& mine, const at::Tensor& all,
             double deadline_s) { memory.all_gather(bytes_of(mine), bytes_of(all), deadline_s); },
          "mine"_a, "all"_a, "deadline_s"_a, Unlocked())
      .def("abort", &SharedMemory::abort);
}

}  // namespace fastsft::bindings
