#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/attention/attention.h. All pointers refer to the current device.
struct AttentionArgs {
  const void* qkv;            // [tokens, (num_heads + 2 * num_key_value_heads) * head_dim]
  const int32_t* cu_seqlens;  // [conversations + 1]
  int64_t tokens;
  int64_t max_seqlen;  // upper bound for the conversation lengths
  int conversations, num_heads, num_key_value_heads, head_dim;
  float scale;
  int64_t window;  // 0: unlimited
  float softcap;   // 0: no softcap

  __host__ __device__ int64_t row() const {
    return static_cast<int64_t>(num_heads + 2 * num_key_value_heads) * head_dim;
  }
  __host__ __device__ int64_t out_row() const { return static_cast<int64_t>(num_heads) * head_dim; }
};

void launch_attention(const AttentionArgs& args, void* out, float* lse, Dtype dtype,
                      cudaStream_t stream);

// `delta` [num_heads, tokens] is scratch memory for the dot products of grad_out and out.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  const void* grad_out;
  const void* out;
  const float* lse;
  float* delta;
  void* grad_qkv;
};
void launch_attention_backward(const AttentionBackwardArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
