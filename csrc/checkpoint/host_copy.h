#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <bit>

namespace fastsft {

// Memory on the host for copies from and to `device`: page-locked when that is a GPU, since other
// memory is copied several times slower.
inline at::Tensor host_buffer(int64_t numel, at::Device device, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu()));
}

// What such a buffer takes: torch's page-locked allocator hands out powers of two.
inline int64_t host_buffer_bytes(int64_t bytes, at::Device device) {
  return device.is_cpu() || bytes == 0
             ? bytes
             : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// The flat `tensor` on the host; itself when it is there already.
inline at::Tensor host_copy(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  at::Tensor copy = host_buffer(tensor.numel(), tensor.device(), tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

}  // namespace fastsft
