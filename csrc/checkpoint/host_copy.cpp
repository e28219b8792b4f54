#include "checkpoint/host_copy.h"

#include <ATen/ops/empty.h>

namespace fastsft {

at::Tensor host_buffer(int64_t numel, at::Device device, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu()));
}

at::Tensor host_copy(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  at::Tensor copy = host_buffer(tensor.numel(), tensor.device(), tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

}  // namespace fastsft
