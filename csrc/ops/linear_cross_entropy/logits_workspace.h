#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace fastsft {

// Buffers for one chunk of tokens in linear_cross_entropy.
struct LogitsWorkspace {
  at::Tensor losses;  // [tokens] float64; only if TokenLosses::kKept
  at::Tensor logits;  // [rows, stride], later their gradient; the dtype of the hidden states
};

// States whether each token's loss is kept. The CUDA kernels keep the losses and add them up at the
// end.
enum class TokenLosses { kNone, kKept };

// Returns buffers in `lent` (uint8), or in new memory if `lent` is absent. Throws
// std::invalid_argument if `lent` is smaller than logits_workspace_bytes.
LogitsWorkspace logits_workspace(const std::optional<at::Tensor>& lent, const at::Tensor& hidden,
                                 int64_t rows, int64_t stride, TokenLosses losses);

// Multiplies a weight's gradient, if present, by `beta`, for batches without tokens.
void scale_gradient(const std::optional<at::Tensor>& gradient, double beta);

// Returns the bytes that suffice for any batch with up to `tokens` labelled tokens. `dtype` is the
// hidden states' dtype.
int64_t logits_workspace_bytes(at::DeviceType device, at::ScalarType dtype, int64_t vocab,
                               int64_t tokens);

}  // namespace fastsft

namespace fastsft::cpu {

// Elements of logits per chunk. Large enough for GEMMs at full speed and few updates of the head's
// gradient; far smaller than a batch's logits.
inline constexpr int64_t kChunkElements = int64_t{8} << 20;

// Returns the most rows of logits per chunk.
inline int64_t logit_chunk_limit(int64_t vocab) {
  return std::max<int64_t>(32, kChunkElements / std::max<int64_t>(1, vocab));
}

// Returns how many floats the losses of 16-bit logits take from `Scratch`: a row for each thread.
inline int64_t loss_row_floats(int64_t vocab, int64_t threads) { return threads * vocab; }

// Returns the rows of logits per chunk for `tokens` labelled tokens.
inline int64_t logit_chunk_rows(int64_t tokens, int64_t vocab) {
  const int64_t limit = logit_chunk_limit(vocab);
  const int64_t chunks = (tokens + limit - 1) / limit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}

}  // namespace fastsft::cpu

namespace fastsft::cuda {

// A batch's logits, divided into chunks of `rows` tokens; the last chunk may be shorter.
// Rows are `stride` elements apart, so that each begins at a 16-byte address in either dtype.
struct LogitsPlan {
  int64_t rows;
  int64_t stride;
};

// Plans chunks of nearly equal size, with at most about 512 MiB of logits but at least 256 rows.
// This gives GEMMs at full speed and few updates of the head's gradient.
LogitsPlan plan_logits(int64_t tokens, int64_t vocab, int64_t itemsize);

// Returns the largest chunk for any count up to `tokens`, since fewer tokens may give larger
// chunks.
LogitsPlan largest_logits(int64_t tokens, int64_t vocab, int64_t itemsize);

}  // namespace fastsft::cuda
