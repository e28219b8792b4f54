#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
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

namespace fastsft::cpu {

// Tokens are taken in chunks whose logits fill about this much: large enough that the products run
// at full rate and the head's gradient is touched seldom, small enough to stay far below the
// batch's logits.
inline constexpr int64_t kChunkElements = int64_t{8} << 20;

// The most rows of logits at a time.
inline int64_t logit_chunk_limit(int64_t vocab) {
  return std::max<int64_t>(32, kChunkElements / std::max<int64_t>(1, vocab));
}

// Rows of logits at a time, for `tokens` labelled tokens.
inline int64_t logit_chunk_rows(int64_t tokens, int64_t vocab) {
  const int64_t limit = logit_chunk_limit(vocab);
  const int64_t chunks = (tokens + limit - 1) / limit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}

}  // namespace fastsft::cpu

namespace fastsft::cuda {

// How the logits of a batch are cut: chunks of `rows` tokens (the last may have fewer), each row
// `stride` elements apart so that every row begins at a 16-byte address in either dtype.
struct LogitsPlan {
  int64_t rows;
  int64_t stride;
};

// Chunks hold at most about 512 MiB of float32 logits, but never fewer than 256 rows, and are of
// nearly equal size: enough rows for the products to run at full rate and for the head's gradient
// to be touched seldom.
LogitsPlan plan_logits(int64_t tokens, int64_t vocab);

// The largest chunk of up to `tokens` tokens: fewer of them may make larger chunks.
LogitsPlan largest_logits(int64_t tokens, int64_t vocab);

}  // namespace fastsft::cuda
