#pragma once

#include <pybind11/numpy.h>

#include <span>
#include <vector>

namespace fastsft::bindings {

namespace py = pybind11;

template <typename T>
using InputArray = py::array_t<T, py::array::c_style | py::array::forcecast>;
using IntArray = InputArray<int64_t>;

// Returns a view of the array's values; the array must outlive the view.
template <typename T>
std::span<const T> view(const InputArray<T>& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T>
std::vector<py::array_t<T>> to_arrays(const std::vector<std::vector<T>>& lists) {
  std::vector<py::array_t<T>> arrays;
  for (const auto& list : lists) arrays.push_back(to_array(list));
  return arrays;
}

}  // namespace fastsft::bindings
