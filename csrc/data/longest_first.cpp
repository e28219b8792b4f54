#include "data/longest_first.h"

#include <algorithm>
#include <numeric>

namespace fastsft {
namespace {

template <typename T>
void append(const std::vector<T>& from, size_t begin, size_t end, std::vector<T>& to) {
  if (from.empty()) return;  // a list that the batch does without
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
            from.begin() + static_cast<std::ptrdiff_t>(end));
}

// Appends conversation `index` of `batch` to `to`.
void append_conversation(const HostBatch& batch, size_t index, HostBatch& to) {
  const int64_t begin = batch.cu_seqlens[index], end = batch.cu_seqlens[index + 1];
  const int64_t moved = static_cast<int64_t>(to.input_ids.size()) - begin;
  const auto label_at = [&](int64_t token) {
    const auto& all = batch.label_positions;
    return static_cast<size_t>(std::lower_bound(all.begin(), all.end(), token) - all.begin());
  };
  const auto append_tokens = [&](const auto& from, auto& into) {
    append(from, static_cast<size_t>(begin), static_cast<size_t>(end), into);
  };
  append_tokens(batch.input_ids, to.input_ids);
  append_tokens(batch.positions, to.positions);
  append_tokens(batch.is_key, to.is_key);
  append_tokens(batch.token_keys, to.token_keys);
  to.cu_seqlens.push_back(static_cast<int32_t>(to.input_ids.size()));
  const size_t first = label_at(begin), last = label_at(end);
  for (size_t i = first; i < last; ++i)
    to.label_positions.push_back(batch.label_positions[i] + moved);
  append(batch.targets, first, last, to.targets);
  append(batch.token_weights, first, last, to.token_weights);
}

}  // namespace

HostBatch longest_first(const HostBatch& batch) {
  const auto length = [&](size_t i) { return batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]; };
  std::vector<size_t> order(batch.cu_seqlens.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return length(a) > length(b); });
  HostBatch result;
  result.max_seqlen = batch.max_seqlen;
  result.num_positions = batch.num_positions;
  result.cu_seqlens.push_back(0);
  for (const size_t index : order) append_conversation(batch, index, result);
  return result;
}

}  // namespace fastsft
