#include "ops/attention/library_attention.h"

#include <ATen/Context.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "data/attention_ranges.h"
#include "ops/attention/cudnn_plans.h"
#include "ops/schema.h"

namespace fastsft::cuda {
namespace {

CudnnShape shape_for(const PaddedShape& padded, int64_t head_dim, const AttentionShape& shape) {
  CudnnShape result{.conversations = padded.conversations,
                    .longest = padded.longest,
                    .num_heads = shape.num_heads,
                    .num_key_value_heads = shape.num_key_value_heads,
                    .head_dim = head_dim,
                    .scale = static_cast<float>(shape.scale)};
  if (shape.window < result.longest) result.window = shape.window;
  return result;
}

int64_t workspace_limit(const CudnnShape& shape, int64_t tokens) {
  return cudnn_workspace_limit(tokens, shape.num_heads, shape.num_key_value_heads, shape.head_dim);
}

// Checks the scratch memory limit by formula, before anything is compiled.
bool is_within_limit(const CudnnShape& shape, int64_t tokens) {
  const bool grouped = shape.num_heads != shape.num_key_value_heads;
  return cudnn_scratch(shape.conversations * shape.longest, grouped) * shape.out_row() <=
         workspace_limit(shape, tokens);
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

bool cudnn_is_usable(const at::Tensor& like) {
  return !at::globalContext().deterministicAlgorithms() &&
         cudnn_is_right(capability_of(like), static_cast<int64_t>(cudnnGetVersion()));
}

PaddedShape padded_shape_at(at::IntArrayRef shapes, size_t range) {
  return {shapes[2 * range], shapes[2 * range + 1]};
}

CudnnPlans plans_of(const CudnnShape& shape, c10::DeviceIndex device) {
  PlanCache& cache = PlanCache::instance();
  const CudnnPlan* backward = cache.find(device, CudnnPass::kBackward, shape);
  if (backward == nullptr) return {};
  return {.forward = cache.find(device, CudnnPass::kForward, shape), .backward = backward};
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

ListPlaces places_of(const CudnnPlans& plans, int64_t begin) {
  const CudnnShape& shape = plans.forward->shape();
  return list_places({shape.conversations, shape.longest}, begin);
}

void check_lists(std::span<const CudnnPlans> plans, const at::Tensor& lists) {
  check_dtype("attention", {"cudnn_lists", lists}, at::kInt);
  int64_t entries = 0;
  for (const CudnnPlans& of_range : plans) entries = places_of(of_range, entries).end;
  check_shape("attention", {"cudnn_lists", lists}, {entries});
}

// Calls `run(plans of a range, its buffers)` for each range of the micro-batch.
template <typename Run>
void for_each_range(std::span<const CudnnPlans> plans, const at::Tensor& lists,
                    CudnnBuffers buffers, const Run& run) {
  check_lists(plans, lists);
  const auto* const list = data<int32_t>(lists);
  int64_t begin = 0;
  for (const CudnnPlans& of_range : plans) {
    const ListPlaces places = places_of(of_range, begin);
    buffers.lengths = list + places.lengths;
    buffers.row_offsets = list + places.row_offsets;
    buffers.out_offsets = list + places.out_offsets;
    buffers.lse_offsets = list + places.lse_offsets;
    run(of_range, buffers);
    begin = places.end;
  }
}

// Returns scratch memory for all calls of a pass, one after the other.
at::Tensor workspace_of(std::span<const CudnnPlans> plans, const CudnnPlan* CudnnPlans::*pass,
                        const at::Tensor& like) {
  int64_t bytes = 1;
  for (const CudnnPlans& of_range : plans) {
    bytes = std::max(bytes, (of_range.*pass)->workspace());
  }
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

}  // namespace

std::vector<CudnnPlans> cudnn_plans(const at::Tensor& qkv, at::IntArrayRef shapes,
                                    const AttentionShape& attention) {
  const int64_t tokens = qkv.size(0);
  const int64_t head_dim = qkv.size(1) / (attention.num_heads + 2 * attention.num_key_value_heads);
  if (shapes.empty() || !cudnn_is_usable(qkv)) return {};
  std::vector<CudnnPlans> plans;
  for (size_t range = 0; range < shapes.size() / 2; ++range) {
    CudnnShape shape = shape_for(padded_shape_at(shapes, range), head_dim, attention);
    shape.half = qkv.scalar_type() == at::kHalf;
    if (!is_within_limit(shape, tokens)) return {};
    plans.push_back(plans_of(shape, qkv.device().index()));
    const auto& [forward, backward] = plans.back();
    if (forward == nullptr || backward->workspace() > workspace_limit(shape, tokens)) return {};
  }
  return plans;
}

void cudnn_attention(std::span<const CudnnPlans> plans, const at::Tensor& qkv,
                     const at::Tensor& lists, const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor workspace = workspace_of(plans, &CudnnPlans::forward, qkv);
  const CudnnBuffers buffers{.qkv = qkv.data_ptr(),
                             .out = out.data_ptr(),
                             .lse = data<float>(lse),
                             .workspace = workspace.data_ptr()};
  for_each_range(plans, lists, buffers, [](const CudnnPlans& plan, const CudnnBuffers& of_range) {
    plan.forward->run(at::native::getCudnnHandle(), of_range);
  });
}

void cudnn_attention_backward(std::span<const CudnnPlans> plans, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& lists, const at::Tensor& grad_qkv) {
  const at::Tensor workspace = workspace_of(plans, &CudnnPlans::backward, qkv);
  const CudnnBuffers buffers{.qkv = qkv.data_ptr(),
                             .out = out.data_ptr(),
                             .lse = data<float>(lse),
                             .grad_out = grad_out.data_ptr(),
                             .grad_qkv = grad_qkv.data_ptr(),
                             .workspace = workspace.data_ptr()};
  for_each_range(plans, lists, buffers, [](const CudnnPlans& plan, const CudnnBuffers& of_range) {
    plan.backward->run(at::native::getCudnnHandle(), of_range);
  });
}

void compile_cudnn_plans(const at::Tensor& like, int64_t head_dim, const AttentionShape& attention,
                         at::IntArrayRef shapes) {
  if (!cudnn_is_usable(like)) return;
  for (size_t range = 0; range < shapes.size() / 2; ++range) {
    CudnnShape shape = shape_for(padded_shape_at(shapes, range), head_dim, attention);
    shape.half = like.scalar_type() == at::kHalf;
    plans_of(shape, like.device().index());
  }
}

namespace {

// Returns three numbers: the scratch memory of cuDNN's forward plan and of its backward plan, in
// bytes, and 1 if the estimated scratch memory is within cudnn_workspace_limit for `tokens`, else
// 0. `device_json` has the device properties, so tests need no GPU.
std::vector<int64_t> plan_cudnn_attention(int64_t tokens, int64_t conversations, int64_t longest,
                                          int64_t num_heads, int64_t num_key_value_heads,
                                          int64_t head_dim, int64_t window,
                                          std::string device_json) {
  const AttentionShape attention{num_heads, num_key_value_heads,
                                 1 / std::sqrt(static_cast<double>(head_dim)), window, longest};
  const CudnnTarget target{.device_json = std::move(device_json)};
  const CudnnShape shape = shape_for(padded_shape(conversations, longest), head_dim, attention);
  return {CudnnPlan(CudnnPass::kForward, shape, target).workspace(),
          CudnnPlan(CudnnPass::kBackward, shape, target).workspace(),
          is_within_limit(shape, tokens) ? 1 : 0};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "plan_cudnn_attention(int tokens, int conversations, int longest, int num_heads, int "
      "num_key_value_heads, int head_dim, int window, str device_json) -> int[]",
      &plan_cudnn_attention);
}

}  // namespace fastsft::cuda
