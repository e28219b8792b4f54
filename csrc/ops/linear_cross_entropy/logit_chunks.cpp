#include "ops/linear_cross_entropy/logit_chunks.h"

#include <algorithm>

namespace fastsft::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{512} << 20;
constexpr int64_t kMinRows = 256;
constexpr int64_t kRowStep = 128;  // rows of a GEMM tile
constexpr int64_t kColumnStep = 8;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

int64_t row_limit(int64_t stride) {
  const int64_t fits = kChunkBytes / (4 * std::max<int64_t>(1, stride)) / kRowStep * kRowStep;
  return std::max(kMinRows, fits);
}

}  // namespace

LogitsPlan plan_logits(int64_t tokens, int64_t vocab) {
  const int64_t stride = round_up(vocab, kColumnStep);
  const int64_t limit = row_limit(stride);
  const int64_t chunks = std::max<int64_t>(1, (tokens + limit - 1) / limit);
  const int64_t rows = round_up((tokens + chunks - 1) / chunks, kRowStep);
  return {std::min(rows, tokens), stride};
}

LogitsPlan largest_logits(int64_t tokens, int64_t vocab) {
  const int64_t stride = round_up(vocab, kColumnStep);
  return {std::min(row_limit(stride), tokens), stride};
}

}  // namespace fastsft::cuda
