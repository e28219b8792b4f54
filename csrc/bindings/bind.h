#pragma once

#include <pybind11/pybind11.h>

// How C++ errors become Python's, and one function a folder; module.cpp calls them in the order of the layers.
namespace fastsft::bindings {

void translate_errors();
void bind_core(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_train(pybind11::module_& module);

}  // namespace fastsft::bindings
