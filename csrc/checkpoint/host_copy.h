#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Memory on the host for copies from and to `device`: page-locked when that is a GPU, since other
// memory is copied several times slower.
at::Tensor host_buffer(int64_t numel, at::Device device, at::ScalarType dtype);

// The flat `tensor` on the host; itself when it is there already.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace fastsft
