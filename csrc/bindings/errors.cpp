#include <c10/util/Exception.h>

#include "bindings/bind.h"

namespace fastsft::bindings {

// std::invalid_argument is ValueError and std::runtime_error is RuntimeError by pybind11's own rules.
// What torch throws keeps its message and loses the C++ backtrace.
void translate_errors() {
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const c10::ValueError& error) {
      pybind11::set_error(PyExc_ValueError, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      pybind11::set_error(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
}

}  // namespace fastsft::bindings
