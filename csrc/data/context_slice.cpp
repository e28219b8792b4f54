#include "data/context_slice.h"

#include <algorithm>
#include <vector>

namespace fastsft {
namespace {

template <typename T>
std::vector<T> part(const std::vector<T>& values, size_t begin, size_t end) {
  if (values.empty()) return {};
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

TokenRange context_range(int64_t tokens, int64_t rank, int64_t ranks) {
  return {tokens * rank / ranks, tokens * (rank + 1) / ranks};
}

HostBatch context_slice(const HostBatch& batch, int64_t rank, int64_t ranks) {
  const auto range = context_range(static_cast<int64_t>(batch.input_ids.size()), rank, ranks);
  const auto begin = static_cast<size_t>(range.begin), end = static_cast<size_t>(range.end);
  HostBatch slice{.input_ids = part(batch.input_ids, begin, end),
                  .positions = part(batch.positions, begin, end),
                  .cu_seqlens = batch.cu_seqlens,
                  .is_key = batch.is_key,
                  .token_keys = part(batch.token_keys, begin, end),
                  .cudnn = batch.cudnn,
                  .max_seqlen = batch.max_seqlen,
                  .num_positions = batch.num_positions,
                  .is_slice = true};
  for (size_t i = 0; i < batch.label_positions.size(); ++i) {
    const int64_t position = batch.label_positions[i];
    if (position < range.begin || position >= range.end) continue;
    slice.label_positions.push_back(position - range.begin);
    slice.targets.push_back(batch.targets[i]);
    slice.token_weights.push_back(batch.token_weights[i]);
  }
  return slice;
}

}  // namespace fastsft
