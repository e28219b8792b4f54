#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// float32 memory on the host for copies from and to `device`: page-locked when that is a GPU, since
// other memory is copied several times slower.
at::Tensor host_buffer(int64_t numel, at::Device device);

// The flat float32 `tensor` on the host; itself when it is there already.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace fastsft
