#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// What linear_cross_entropy computes a chunk of tokens in.
struct LogitsWorkspace {
  at::Tensor losses;       // [tokens] float64; where asked for
  at::Tensor logits;       // [rows, stride] float32
  at::Tensor grad_logits;  // [rows, stride]: the logits in float32, else next to them
};

// Whether the losses of single tokens are kept: the CUDA kernels add them up at the end.
enum class TokenLosses { kNone, kKept };

// Parts of `lent` (uint8), which is large enough by the function below (std::invalid_argument
// otherwise), or of new memory.
LogitsWorkspace logits_workspace(const std::optional<at::Tensor>& lent, const at::Tensor& hidden,
                                 int64_t rows, int64_t stride, TokenLosses losses);

// A weight's gradient, if there is one, times `beta`: what a batch without tokens does to it.
void scale_gradient(const std::optional<at::Tensor>& gradient, double beta);

// Bytes that are enough for any batch of up to `tokens` labelled tokens. `dtype` of the hidden
// states.
int64_t logits_workspace_bytes(at::DeviceType device, at::ScalarType dtype, int64_t vocab,
                               int64_t tokens);

}  // namespace fastsft
