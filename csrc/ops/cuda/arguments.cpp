#include "ops/cuda/arguments.h"

#include <algorithm>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

MasterArgs master_of(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy) {
  return {.values = param.data_ptr(),
          .copy = compute_copy ? compute_copy->data_ptr() : nullptr,
          .split = param.scalar_type() == at::kShort,
          .half_copy = compute_copy && compute_copy->scalar_type() == at::kHalf};
}

uint64_t alignment_of(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uint64_t>(tensor.data_ptr());
  const int64_t stride = tensor.dim() == 2 && tensor.size(0) > 1 ? tensor.stride(0) : 0;
  const uint64_t bits = 256 | address | static_cast<uint64_t>(stride) * tensor.element_size();
  return bits & (~bits + 1);  // the lowest set bit
}

int access_width(int64_t columns, std::initializer_list<at::Tensor> tensors) {
  uint64_t alignment = 256;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) alignment = std::min(alignment, alignment_of(tensor));
  }
  return access_width(columns, static_cast<int>(tensors.begin()->element_size()), alignment);
}

int flat_width(std::initializer_list<at::Tensor> tensors) {
  bool aligned = true;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) aligned = aligned && alignment_of(tensor) >= 16;
  }
  return aligned ? 8 : 1;
}

}  // namespace fastsft::cuda
