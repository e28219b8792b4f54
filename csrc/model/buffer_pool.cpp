#include "model/buffer_pool.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

namespace fastsft {

at::Tensor BufferPool::get(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t numel = c10::multiply_integers(sizes);
  at::Tensor& buffer = buffers_[name];
  if (!buffer.defined() || buffer.numel() < numel || buffer.scalar_type() != dtype) {
    buffer = at::Tensor();  // before the larger one comes
    buffer = at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  return buffer.narrow(0, 0, numel).view(sizes);
}

int64_t BufferPool::nbytes() const {
  int64_t sum = 0;
  for (const auto& [name, buffer] : buffers_) sum += static_cast<int64_t>(buffer.nbytes());
  return sum;
}

}  // namespace fastsft
