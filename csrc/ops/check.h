#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string_view>

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

}  // namespace fastsft
