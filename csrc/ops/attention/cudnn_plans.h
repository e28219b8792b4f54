#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "data/attention_ranges.h"

struct cudnnContext;  // the type that cudnnHandle_t points to

namespace fastsft::cuda {

// The shape for which cuDNN compiles attention over packed conversations. A plan also serves
// micro-batches with fewer or shorter conversations.
struct CudnnShape {
  PaddedShape padded;
  HeadShape heads;
  int64_t window = 0;  // 0: unlimited
  float scale = 1;
  bool half = false;  // float16; otherwise bfloat16

  auto operator<=>(const CudnnShape&) const = default;
};

// Device memory of one call. The four int32 lists have an entry per conversation of the shape;
// offsets have an additional entry at the end. An offset counts the elements before a
// conversation's first token. If the range has fewer conversations, the remaining entries are empty
// conversations.
struct CudnnBuffers {
  void *qkv, *out;
  float* lse;  // [tokens, num_heads]
  void *grad_out = nullptr, *grad_qkv = nullptr;
  const int32_t *lengths = nullptr, *row_offsets = nullptr;
  const int32_t *out_offsets = nullptr, *lse_offsets = nullptr;
  void* workspace = nullptr;
};

// Thrown if cuDNN has no kernel for a shape or cannot be used; what() is cuDNN's own message.
struct CudnnRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The device for which a plan is compiled: a handle's device, or a description as
// cudnnBackendGetAttribute(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) returns it.
struct CudnnTarget {
  cudnnContext* handle = nullptr;
  std::string device_json = {};
};

enum class CudnnPass { kForward, kBackward };

// cuDNN's attention, or its gradient, in bfloat16 or float16, compiled for one shape. It reads and
// writes queries, keys and values directly in the fused rows.
class CudnnPlan {
 public:
  // Compiles the plan, which takes seconds. Throws CudnnRefusal.
  CudnnPlan(CudnnPass pass, const CudnnShape& shape, const CudnnTarget& target);
  ~CudnnPlan();

  const CudnnShape& shape() const { return shape_; }
  int64_t workspace() const;  // bytes
  void run(cudnnContext* handle, const CudnnBuffers& buffers) const;

 private:
  struct Compiled;
  CudnnPass pass_;
  CudnnShape shape_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace fastsft::cuda
