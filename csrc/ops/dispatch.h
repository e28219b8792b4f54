#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "core/trace.h"

// The body of an op's C++ function: the dispatcher finds the kernel of the tensors' device.
#define FASTSFT_DISPATCH(op, ...)                                                                \
  const ::fastsft::trace::Span op_span(::fastsft::trace::Lane::kCompute, #op);                   \
  static const auto handle =                                                                     \
      c10::Dispatcher::singleton().findSchemaOrThrow("fastsft::" #op, "").typed<decltype(op)>(); \
  return handle.call(__VA_ARGS__)
