#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

// The body of an op's C++ function: the dispatcher finds the kernel of the tensors' device.
#define FASTSFT_DISPATCH(op, ...)                                                                \
  static const auto handle =                                                                     \
      c10::Dispatcher::singleton().findSchemaOrThrow("fastsft::" #op, "").typed<decltype(op)>(); \
  return handle.call(__VA_ARGS__)
