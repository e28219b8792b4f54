#include "ops/linear_cross_entropy/logits_workspace.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t itemsize(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Offsets in bytes of the logits, which follow the losses, and of the workspace's end.
struct Places {
  int64_t logits, end;
};

Places places(TokenLosses losses, at::ScalarType dtype, int64_t tokens, int64_t elements) {
  const int64_t logits = losses == TokenLosses::kNone ? 0 : aligned(8 * tokens);
  return {logits, logits + aligned(itemsize(dtype) * elements)};
}

at::Tensor part(const at::Tensor& bytes, int64_t begin, at::ScalarType dtype, int64_t rows,
                int64_t columns) {
  return bytes.narrow(0, begin, rows * columns * itemsize(dtype)).view(dtype).view({rows, columns});
}

}  // namespace

int64_t logits_workspace_bytes(at::DeviceType device, at::ScalarType dtype, int64_t vocab,
                               int64_t tokens) {
  if (device == at::kCPU) {
    const int64_t rows = std::min(tokens, cpu::logit_chunk_limit(vocab));
    return places(TokenLosses::kNone, dtype, tokens, rows * vocab).end;
  }
  const cuda::LogitsPlan plan = cuda::largest_logits(tokens, vocab, itemsize(dtype));
  return places(TokenLosses::kKept, dtype, tokens, plan.rows * plan.stride).end;
}

LogitsWorkspace logits_workspace(const std::optional<at::Tensor>& lent, const at::Tensor& hidden,
                                 int64_t rows, int64_t stride, TokenLosses losses) {
  const at::ScalarType dtype = hidden.scalar_type();
  const int64_t tokens = hidden.size(0);
  const Places at = places(losses, dtype, tokens, rows * stride);
  require(!lent || lent->numel() >= at.end, "linear_cross_entropy: workspace has ",
          lent ? lent->numel() : 0, " bytes, expected at least ", at.end);
  const at::Tensor bytes = lent ? *lent : at::empty({at.end}, hidden.options().dtype(at::kByte));
  LogitsWorkspace result;
  result.logits = part(bytes, at.logits, dtype, rows, stride);
  if (losses == TokenLosses::kKept)
    result.losses = part(bytes, 0, at::kDouble, 1, tokens).view({tokens});
  return result;
}

void scale_gradient(const std::optional<at::Tensor>& gradient, double beta) {
  if (gradient && beta == 0)
    gradient->zero_();
  else if (gradient && beta != 1)
    gradient->mul_(beta);
}

}  // namespace fastsft

namespace fastsft::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{512} << 20;
constexpr int64_t kMinRows = 256;
constexpr int64_t kRowStep = 128;  // rows per GEMM tile
constexpr int64_t kColumnStep = 8;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t row_limit(int64_t row_bytes) {
  const int64_t fits = kChunkBytes / std::max<int64_t>(1, row_bytes) / kRowStep * kRowStep;
  return std::max(kMinRows, fits);
}

}  // namespace

LogitsPlan plan_logits(int64_t tokens, int64_t vocab, int64_t itemsize) {
  const int64_t stride = round_up(vocab, kColumnStep);
  const int64_t limit = row_limit(itemsize * stride);
  const int64_t chunks = std::max<int64_t>(1, (tokens + limit - 1) / limit);
  const int64_t rows = round_up((tokens + chunks - 1) / chunks, kRowStep);
  return {std::min(rows, tokens), stride};
}

LogitsPlan largest_logits(int64_t tokens, int64_t vocab, int64_t itemsize) {
  const int64_t stride = round_up(vocab, kColumnStep);
  return {std::min(row_limit(itemsize * stride), tokens), stride};
}

}  // namespace fastsft::cuda
