#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace fastsft {

// Named buffers that grow to the largest micro-batch seen and are used again: after warm-up a step
// allocates nothing large. All on one device. A buffer's content is what its last user left.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  at::Tensor get(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype);
  int64_t nbytes() const;

 private:
  at::Device device_;
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace fastsft
