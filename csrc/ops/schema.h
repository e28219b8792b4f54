#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <optional>

#include "core/trace.h"

// Expands to the body of an op's C++ function. The dispatcher selects the kernel for the tensors'
// device.
#define FASTSFT_DISPATCH(op, ...)                                                                \
  const ::fastsft::trace::Span op_span(::fastsft::trace::Track::kCompute, #op);                  \
  static const auto handle =                                                                     \
      c10::Dispatcher::singleton().findSchemaOrThrow("fastsft::" #op, "").typed<decltype(op)>(); \
  return handle.call(__VA_ARGS__)

namespace fastsft {

// A named tensor argument. Every op requires tensors on one device, contiguous in the last
// dimension, and without a gradient tape. The checks below throw std::invalid_argument through
// TORCH_CHECK_VALUE and name op and argument.
struct Arg {
  const char* name;
  const at::Tensor& tensor;
};

void check_tensors(const char* op, std::initializer_list<Arg> args);
void check_shape(const char* op, const Arg& arg, at::IntArrayRef expected);
void check_dtype(const char* op, const Arg& arg, at::ScalarType expected);
// Checks for float32, bfloat16 or float16.
void check_compute_dtype(const char* op, const Arg& arg);
// Checks for float32 or bfloat16: gradients and moments need float32's exponent range.
void check_state_dtype(const char* op, const Arg& arg);
// Checks that param and compute_copy have matching devices, dtypes and sizes (ops/master/master.h).
void check_master(const char* op, const at::Tensor& param,
                  const std::optional<at::Tensor>& compute_copy);

}  // namespace fastsft
