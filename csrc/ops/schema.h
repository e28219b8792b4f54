#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <optional>

#include "core/trace.h"

// The body of an op's C++ function: the dispatcher finds the kernel of the tensors' device.
#define FASTSFT_DISPATCH(op, ...)                                                                \
  const ::fastsft::trace::Span op_span(::fastsft::trace::Track::kCompute, #op);                  \
  static const auto handle =                                                                     \
      c10::Dispatcher::singleton().findSchemaOrThrow("fastsft::" #op, "").typed<decltype(op)>(); \
  return handle.call(__VA_ARGS__)

namespace fastsft {

// What every op requires: tensors on one device, contiguous in the last dimension, and no gradient
// tape. Each throws std::invalid_argument through TORCH_CHECK_VALUE with op and argument named.
struct Arg {
  const char* name;
  const at::Tensor& tensor;
};

void check_tensors(const char* op, std::initializer_list<Arg> args);
void check_shape(const char* op, const Arg& arg, at::IntArrayRef expected);
void check_dtype(const char* op, const Arg& arg, at::ScalarType expected);
// float32, bfloat16 or float16.
void check_compute_dtype(const char* op, const Arg& arg);
// float32 or bfloat16: of gradients and moments, which need the exponents of float32.
void check_state_dtype(const char* op, const Arg& arg);
// Of one device, dtype and size as ops/master/master.h has them.
void check_master(const char* op, const at::Tensor& param,
                  const std::optional<at::Tensor>& compute_copy);

}  // namespace fastsft
