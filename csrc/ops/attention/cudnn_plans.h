#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

struct cudnnContext;  // cudnnHandle_t points to one

namespace fastsft::cuda {

// What cuDNN compiles attention for: conversations of a micro-batch laid end to end. One plan
// serves all micro-batches with no more conversations, none of them longer.
struct CudnnShape {
  int64_t conversations = 0, longest = 0;
  // Tokens of the micro-batch, by which the scratch of backward goes; 0: it goes by
  // conversations * longest. Forward does not know them.
  int64_t tokens = 0;
  int64_t num_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t window = 0;  // 0: all
  float scale = 1;
  bool half = false;  // float16, else bfloat16

  auto operator<=>(const CudnnShape&) const = default;
  // Elements of a token: query, key and value; attention's result.
  int64_t row() const { return (num_heads + 2 * num_key_value_heads) * head_dim; }
  int64_t out_row() const { return num_heads * head_dim; }
};

// Memory of one call, on the device. The four lists of int32 have an entry for each of the shape's
// conversations, offsets one more: elements before its first token. Those that a micro-batch lacks
// are empty, at its end.
struct CudnnBuffers {
  void *qkv, *out;
  float* lse;  // [tokens, num_heads]
  void *grad_out = nullptr, *grad_qkv = nullptr;
  int32_t *lengths, *row_offsets, *out_offsets, *lse_offsets;
  void* workspace;
};

// cuDNN has no kernel for a shape, or cannot be used; what it said.
struct CudnnRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where a plan is made: on the device of a handle, or by its properties alone, as
// cudnnBackendGetAttribute(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) writes them.
struct CudnnTarget {
  cudnnContext* handle = nullptr;
  std::string device_json = {};
};

enum class CudnnPass { kForward, kBackward };

// Attention or its gradient in bfloat16 or float16 by cuDNN, compiled for one shape. Queries, keys
// and values are read, and their gradients written, where they are in the fused rows.
class CudnnPlan {
 public:
  // Seconds of compiling. CudnnRefusal.
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
