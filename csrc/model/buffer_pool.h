#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace fastsft {

// Named buffers that grow to the largest micro-batch seen and are used again: after warm-up a step
// allocates nothing large. A buffer's content is what its last user left.
class BufferPool {
 public:
  at::Tensor get(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype);
  int64_t nbytes() const;

 private:
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace fastsft
