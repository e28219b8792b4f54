#include "aten/tensors.h"

#include <algorithm>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>

namespace fake_device {
namespace {

// A Python number that became a tensor; it does not take part in type promotion.
bool is_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

}  // namespace

at::Tensor cpu_view(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cpu()) return is_number(tensor) ? tensor : tensor.clone();
  TORCH_CHECK(!tensor.is_sparse(), "fake device: sparse tensors are not implemented");
  const void* data = tensor.storage().data() ? tensor.const_data_ptr() : nullptr;
  return at::from_blob(const_cast<void*>(data), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

at::Tensor meta_like(const at::Tensor& tensor) {
  if (!tensor.defined() || is_number(tensor)) return tensor;
  const at::TensorOptions options = tensor.options().device(at::kMeta).pinned_memory(false);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

Range range_of(const at::Tensor& tensor, bool write) {
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return {0, 0, write};
    last += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const size_t span = (last + 1) * tensor.element_size();
  return {begin, begin + span, write, std::min<uint64_t>(span, tensor.nbytes())};
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace fake_device
