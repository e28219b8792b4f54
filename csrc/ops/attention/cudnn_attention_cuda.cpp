#include "ops/attention/cudnn_attention.h"

#include <ATen/Context.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ops/attention/cudnn_plans.h"

namespace fastsft::cuda {
namespace {

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Few shapes for all micro-batches of a run: each is compiled once. Conversations above the number
// are empty, and their blocks of threads end at once.
CudnnShape shape_for(int64_t tokens, int64_t conversations, int64_t head_dim,
                     const AttentionShape& shape) {
  const int64_t step = conversations <= 8 ? 1 : conversations <= 64 ? 8 : 32;
  return {.conversations = rounded_up(conversations, step),
          .longest = rounded_up(std::max<int64_t>(shape.max_seqlen, 2), 256),
          .tokens = rounded_up(tokens, 1024),
          .num_heads = shape.num_heads,
          .num_key_value_heads = shape.num_key_value_heads,
          .head_dim = head_dim,
          .window = shape.window,
          .scale = static_cast<float>(shape.scale)};
}

std::unique_ptr<CudnnPlans> compiled(const CudnnShape& shape, const CudnnTarget& target) {
  try {
    return std::make_unique<CudnnPlans>(shape, target);
  } catch (const CudnnRefusal&) {
    return nullptr;
  }
}

int64_t scratch_of(const std::unique_ptr<CudnnPlans>& plans) {
  return plans ? std::max(plans->forward_workspace(), plans->backward_workspace())
               : std::numeric_limits<int64_t>::max();
}

// Told the number of tokens, cuDNN's scratch goes by them, with more for each than without.
std::unique_ptr<CudnnPlans> with_less_scratch(const CudnnShape& shape, const CudnnTarget& target) {
  CudnnShape padded = shape;
  padded.tokens = 0;
  auto by_longest = compiled(padded, target);
  if (by_longest && padded.conversations * padded.longest <= 2 * shape.tokens) return by_longest;
  auto by_tokens = compiled(shape, target);
  return scratch_of(by_tokens) < scratch_of(by_longest) ? std::move(by_tokens)
                                                        : std::move(by_longest);
}

// Of one device each; what is compiled stays until the process ends.
class PlanCache {
 public:
  static PlanCache& instance() {
    static auto* const cache = new PlanCache;  // never destroyed: cuDNN is unloaded before statics
    return *cache;
  }
  const CudnnPlans* find(int device, const CudnnShape& shape) {
    const std::scoped_lock lock(mutex_);
    const auto [place, is_new] = plans_.try_emplace({device, shape});
    if (is_new) place->second = with_less_scratch(shape, {.handle = at::native::getCudnnHandle()});
    return place->second.get();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, CudnnShape>, std::unique_ptr<CudnnPlans>> plans_;
};

// Entries of CudnnBuffers on the device.
struct Lists {
  at::Tensor lengths;  // [conversations]
  at::Tensor offsets;  // [3, conversations + 1]: of rows, of rows of the result, of lse
};

Lists lists_of(const at::Tensor& cu_seqlens, int64_t tokens, const CudnnShape& shape) {
  const int64_t missing = shape.conversations + 1 - cu_seqlens.size(0);
  const at::Tensor ends =
      missing == 0 ? cu_seqlens : at::constant_pad_nd(cu_seqlens, {0, missing}, tokens);
  const auto widths = {shape.row(), shape.out_row(), shape.num_heads};
  const at::Tensor offsets = at::empty({3, ends.size(0)}, ends.options());
  int64_t list = 0;
  for (const int64_t width : widths) {
    at::Tensor into = offsets[list++];
    at::mul_out(into, ends, at::scalar_tensor(width, ends.options().device(at::kCPU)));
  }
  return {ends.slice(0, 1) - ends.slice(0, 0, -1), offsets};
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

at::Tensor workspace_of(int64_t bytes, const at::Tensor& like) {
  return at::empty({std::max<int64_t>(bytes, 1)}, like.options().dtype(at::kByte));
}

}  // namespace

const CudnnPlans* cudnn_plans(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                              const AttentionShape& attention) {
  const int64_t tokens = qkv.size(0), conversations = cu_seqlens.size(0) - 1;
  const int64_t heads = attention.num_heads + 2 * attention.num_key_value_heads;
  const int64_t head_dim = qkv.size(1) / heads;
  if (at::globalContext().deterministicAlgorithms()) return nullptr;
  if (conversations == 0 || qkv.numel() > std::numeric_limits<int32_t>::max()) return nullptr;
  CudnnShape shape = shape_for(tokens, conversations, head_dim, attention);
  shape.half = qkv.scalar_type() == at::kHalf;
  const CudnnPlans* plans = PlanCache::instance().find(qkv.device().index(), shape);
  const int64_t limit =
      cudnn_workspace_limit(tokens, attention.num_heads, attention.num_key_value_heads, head_dim);
  return plans && plans->backward_workspace() <= limit ? plans : nullptr;
}

void cudnn_attention(const CudnnPlans& plans, const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor workspace = workspace_of(plans.forward_workspace(), qkv);
  const Lists lists = lists_of(cu_seqlens, qkv.size(0), plans.shape());
  plans.forward(at::native::getCudnnHandle(), buffers_of(qkv, out, lse, lists, workspace));
}

void cudnn_attention_backward(const CudnnPlans& plans, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const at::Tensor& grad_qkv) {
  const at::Tensor workspace = workspace_of(plans.backward_workspace(), qkv);
  const Lists lists = lists_of(cu_seqlens, qkv.size(0), plans.shape());
  CudnnBuffers buffers = buffers_of(qkv, out, lse, lists, workspace);
  buffers.grad_out = grad_out.data_ptr();
  buffers.grad_qkv = grad_qkv.data_ptr();
  plans.backward(at::native::getCudnnHandle(), buffers);
}

namespace {

// The scratch of cuDNN's plans for such a micro-batch on a device with the properties
// `device_json`, in bytes: forward, backward. For tests on machines without one.
std::vector<int64_t> plan_cudnn_attention(int64_t tokens, int64_t conversations, int64_t max_seqlen,
                                          int64_t num_heads, int64_t num_key_value_heads,
                                          int64_t head_dim, int64_t window,
                                          std::string device_json) {
  const AttentionShape attention{num_heads, num_key_value_heads,
                                 1 / std::sqrt(static_cast<double>(head_dim)), window, max_seqlen};
  const CudnnShape shape = shape_for(tokens, conversations, head_dim, attention);
  const CudnnTarget target{.device_json = std::move(device_json)};
  const auto plans = with_less_scratch(shape, target);
  if (!plans) CudnnPlans(shape, target);  // says why
  return {plans->forward_workspace(), plans->backward_workspace()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "plan_cudnn_attention(int tokens, int conversations, int max_seqlen, int num_heads, int "
      "num_key_value_heads, int head_dim, int window, str device_json) -> int[]",
      &plan_cudnn_attention);
}

}  // namespace fastsft::cuda
