// The ops of csrc/ops/*/*_cuda.cpp with their launches on the CPU: kernels of the CPU's tensors in
// a library of their own (-Dfastsft=fastsft_on_cpu), next to the product's CPU ops, with which
// tests compare them.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/attention/library_attention.h"

#define CUDA CPU
#include "cuda_ops.inc"
#undef CUDA

namespace fastsft::cuda {
void flash_attention(const at::Tensor&, const at::Tensor&, const AttentionShape&, const at::Tensor&,
                     const at::Tensor&) {
  TORCH_CHECK(false, "flash attention needs a device");
}
void flash_attention_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, const AttentionShape&,
                              const at::Tensor&) {
  TORCH_CHECK(false, "flash attention needs a device");
}
std::vector<CudnnPlans> cudnn_plans(const at::Tensor&, at::IntArrayRef, const AttentionShape&) {
  TORCH_CHECK(false, "cuDNN needs a device");
}
bool compile_cudnn_plans(const at::Tensor&, int64_t, const AttentionShape&, const PaddedShape&) {
  return false;
}
void cudnn_attention(std::span<const CudnnPlans>, const at::Tensor&, const at::Tensor&,
                     const at::Tensor&, const at::Tensor&) {
  TORCH_CHECK(false, "cuDNN needs a device");
}
void cudnn_attention_backward(std::span<const CudnnPlans>, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&) {
  TORCH_CHECK(false, "cuDNN needs a device");
}
}  // namespace fastsft::cuda
