#include "bindings/bind.h"

PYBIND11_MODULE(_C, module) {
  using namespace fastsft::bindings;
  module.doc() = "fastsft: native core";
  translate_errors();
  bind_core(module);
  bind_data(module);
  bind_train(module);
}
