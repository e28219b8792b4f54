#include "ops/attention/library_attention.h"

#include <ATen/Context.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "ops/attention/cudnn_plans.h"

namespace fastsft::cuda {
namespace {

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Rounds a micro-batch's shape up, so that a run has few shapes and compiles each once. Added
// conversations are empty, and their thread blocks end immediately.
CudnnShape shape_for(int64_t tokens, int64_t conversations, int64_t head_dim,
                     const AttentionShape& shape) {
  const int64_t step = conversations <= 8 ? 1 : conversations <= 64 ? 8 : 32;
  CudnnShape result{.conversations = rounded_up(conversations, step),
                    .longest = rounded_up(std::max<int64_t>(shape.max_seqlen, 2), 256),
                    .num_heads = shape.num_heads,
                    .num_key_value_heads = shape.num_key_value_heads,
                    .head_dim = head_dim,
                    .scale = static_cast<float>(shape.scale)};
  if (shape.window < result.longest) result.window = shape.window;
  const bool grouped = shape.num_heads != shape.num_key_value_heads;
  if (cudnn_scratch(result.conversations * result.longest, tokens, grouped).by_tokens) {
    result.tokens = rounded_up(tokens, 1024);
  }
  return result;
}

// Checks the scratch memory limit by formula, before anything is compiled.
bool is_within_limit(const CudnnShape& shape, int64_t tokens) {
  const bool grouped = shape.num_heads != shape.num_key_value_heads;
  const int64_t padded = shape.conversations * shape.longest;
  return cudnn_scratch(padded, tokens, grouped).bytes * shape.out_row() <=
         cudnn_workspace_limit(tokens, shape.num_heads, shape.num_key_value_heads, shape.head_dim);
}

// Compiled plans, kept until the process ends. A shape that cuDNN has refused is not tried again.
class PlanCache {
 public:
  static PlanCache& instance() {
    static auto* const cache = new PlanCache;  // leaked: cuDNN is unloaded before statics
    return *cache;
  }
  const CudnnPlan* find(int device, CudnnPass pass, const CudnnShape& shape) {
    const std::scoped_lock lock(mutex_);
    const Key key{device, pass, shape};
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    return plans_.emplace(key, compiled(pass, shape)).first->second.get();
  }

 private:
  using Key = std::tuple<int, CudnnPass, CudnnShape>;

  static std::unique_ptr<CudnnPlan> compiled(CudnnPass pass, const CudnnShape& shape) {
    const CudnnTarget target{.handle = at::native::getCudnnHandle()};
    try {
      return std::make_unique<CudnnPlan>(pass, shape, target);
    } catch (const CudnnRefusal& refusal) {
      TORCH_WARN("cuDNN has no attention for up to ", shape.conversations,
                 " conversations of up to ", shape.longest, " tokens, ", shape.num_heads,
                 " heads, ", shape.num_key_value_heads, " of keys, of ", shape.head_dim, ": ",
                 refusal.what(), "; flash attention computes them");
      return nullptr;
    }
  }

  std::mutex mutex_;
  std::map<Key, std::unique_ptr<CudnnPlan>> plans_;
};

int capability_of(const at::Tensor& tensor) {
  int capability = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor,
                                        tensor.device().index()));
  return capability;
}

// Device tensors for the lists in CudnnBuffers.
struct Lists {
  at::Tensor lengths;  // [conversations]
  // Offsets of the rows of qkv, out and lse, [3, conversations + 1]. Each list is 16-byte aligned.
  at::Tensor offsets;
};

Lists lists_of(const at::Tensor& cu_seqlens, int64_t tokens, const CudnnShape& shape) {
  const int64_t missing = shape.conversations + 1 - cu_seqlens.size(0);
  const at::Tensor ends =
      missing == 0 ? cu_seqlens : at::constant_pad_nd(cu_seqlens, {0, missing}, tokens);
  const auto widths = {shape.row(), shape.out_row(), shape.num_heads};
  const at::Tensor offsets =
      at::empty({3, rounded_up(ends.size(0), 4)}, ends.options()).narrow(1, 0, ends.size(0));
  int64_t list = 0;
  for (const int64_t width : widths) {
    at::Tensor into = offsets[list++];
    at::mul_out(into, ends, at::scalar_tensor(width, ends.options().device(at::kCPU)));
  }
  return {at::sub(ends.slice(0, 1), ends.slice(0, 0, -1)), offsets};
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

CudnnBuffers buffers_of(const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                        const Lists& lists, const at::Tensor& workspace) {
  return {.qkv = qkv.data_ptr(),
          .out = out.data_ptr(),
          .lse = data<float>(lse),
          .lengths = data<int32_t>(lists.lengths),
          .row_offsets = data<int32_t>(lists.offsets[0]),
          .out_offsets = data<int32_t>(lists.offsets[1]),
          .lse_offsets = data<int32_t>(lists.offsets[2]),
          .workspace = workspace.data_ptr()};
}

at::Tensor workspace_of(const CudnnPlan& plan, const at::Tensor& like) {
  return at::empty({std::max<int64_t>(plan.workspace(), 1)}, like.options().dtype(at::kByte));
}

}  // namespace

CudnnPlans cudnn_plans(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                       const AttentionShape& attention) {
  const int64_t tokens = qkv.size(0), conversations = cu_seqlens.size(0) - 1;
  const int64_t heads = attention.num_heads + 2 * attention.num_key_value_heads;
  const int64_t head_dim = qkv.size(1) / heads;
  if (at::globalContext().deterministicAlgorithms()) return {};
  if (conversations == 0 || qkv.numel() > std::numeric_limits<int32_t>::max()) return {};
  if (!cudnn_is_right(capability_of(qkv), static_cast<int64_t>(cudnnGetVersion()))) return {};
  CudnnShape shape = shape_for(tokens, conversations, head_dim, attention);
  shape.half = qkv.scalar_type() == at::kHalf;
  if (!is_within_limit(shape, tokens)) return {};
  PlanCache& cache = PlanCache::instance();
  const int device = qkv.device().index();
  const CudnnPlan* backward = cache.find(device, CudnnPass::kBackward, shape);
  const int64_t limit =
      cudnn_workspace_limit(tokens, attention.num_heads, attention.num_key_value_heads, head_dim);
  if (backward == nullptr || backward->workspace() > limit) return {};
  shape.tokens = 0;
  return {.forward = cache.find(device, CudnnPass::kForward, shape), .backward = backward};
}

void cudnn_attention(const CudnnPlan& forward, const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor workspace = workspace_of(forward, qkv);
  const Lists lists = lists_of(cu_seqlens, qkv.size(0), forward.shape());
  forward.run(at::native::getCudnnHandle(), buffers_of(qkv, out, lse, lists, workspace));
}

void cudnn_attention_backward(const CudnnPlan& backward, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const at::Tensor& grad_qkv) {
  const at::Tensor workspace = workspace_of(backward, qkv);
  const Lists lists = lists_of(cu_seqlens, qkv.size(0), backward.shape());
  CudnnBuffers buffers = buffers_of(qkv, out, lse, lists, workspace);
  buffers.grad_out = grad_out.data_ptr();
  buffers.grad_qkv = grad_qkv.data_ptr();
  backward.run(at::native::getCudnnHandle(), buffers);
}

namespace {

// Returns three numbers: the scratch memory of cuDNN's forward plan and of its backward plan, in
// bytes, and 1 if the estimated scratch memory is within cudnn_workspace_limit, else 0.
// `device_json` has the device properties, so tests need no GPU.
std::vector<int64_t> plan_cudnn_attention(int64_t tokens, int64_t conversations, int64_t max_seqlen,
                                          int64_t num_heads, int64_t num_key_value_heads,
                                          int64_t head_dim, int64_t window,
                                          std::string device_json) {
  const AttentionShape attention{num_heads, num_key_value_heads,
                                 1 / std::sqrt(static_cast<double>(head_dim)), window, max_seqlen};
  const CudnnTarget target{.device_json = std::move(device_json)};
  CudnnShape shape = shape_for(tokens, conversations, head_dim, attention);
  const bool within = is_within_limit(shape, tokens);
  const int64_t backward = CudnnPlan(CudnnPass::kBackward, shape, target).workspace();
  shape.tokens = 0;
  return {CudnnPlan(CudnnPass::kForward, shape, target).workspace(), backward, within ? 1 : 0};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "plan_cudnn_attention(int tokens, int conversations, int max_seqlen, int num_heads, int "
      "num_key_value_heads, int head_dim, int window, str device_json) -> int[]",
      &plan_cudnn_attention);
}

}  // namespace fastsft::cuda
