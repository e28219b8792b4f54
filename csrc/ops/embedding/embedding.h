#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Sets out[i] = weight[ids[i]]. weight [vocab, hidden] and out [tokens, hidden] have one dtype; ids
// [tokens] int64.
void embedding(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out);

// Adds grad_out[i] to grad_weight[ids[i]]. Each row is summed in the order of i, so the result is
// deterministic.
//   grad_out [tokens, hidden] float32, bfloat16 or float16, grad_weight [vocab, hidden] float32.
void embedding_backward(const at::Tensor& grad_out, const at::Tensor& ids,
                        const at::Tensor& grad_weight);

void check_embedding(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out);
void check_embedding_backward(const at::Tensor& grad_out, const at::Tensor& ids,
                              const at::Tensor& grad_weight);

}  // namespace fastsft
