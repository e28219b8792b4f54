#include "data/step_source.h"

#include <algorithm>
#include <numeric>

namespace fastsft {

StepSource::StepSource(std::vector<int64_t> lengths, std::vector<int64_t> target_counts,
                       std::vector<int64_t> label_counts, const StepSourceOptions& options)
    : lengths_(std::move(lengths)),
      target_counts_(std::move(target_counts)),
      label_counts_(std::move(label_counts)),
      options_(options) {}

GroupPacking StepSource::pack(std::span<const int64_t> order, int64_t step) const {
  const auto group = reference_group(order, step, options_.accumulation, options_.shape);
  return pack_group({lengths_, target_counts_, label_counts_}, group, options_.norm, options_.pack);
}

GroupPlan StepSource::plan(std::span<const int64_t> order, int64_t step, int64_t rank) const {
  return plan_of_rank(pack(order, step), rank);
}

PackingSummary StepSource::summary(std::span<const int64_t> order, int64_t steps) const {
  PackingSummary summary;
  for (int64_t step = 0; step < steps; ++step) {
    summary.add(pack(order, step), options_.pack.cost);
  }
  return summary;
}

namespace {

struct Size {
  int64_t tokens = 0, labels = 0;
};

Size size_of(const std::vector<int32_t>& items, const GroupPacking& packing) {
  Size size;
  for (const int32_t item : items) {
    size.tokens += packing.lengths[static_cast<size_t>(item)];
    size.labels += packing.targets[static_cast<size_t>(item)];
  }
  return size;
}

// Adds the shapes in which cuDNN computes a micro-batch (BatchRules::cudnn). Flash attention
// computes the micro-batch instead if one of the shapes is too large.
void add_shapes(const std::vector<int32_t>& items, const GroupPacking& packing,
                std::set<PaddedShape>& shapes) {
  // cudnn_workspace_limit has another MiB: at most so many tokens, of 64 elements and 4 bytes.
  constexpr int64_t kFewTokens = 4096;
  std::vector<int64_t> lengths;
  for (const int32_t item : items) lengths.push_back(packing.lengths[static_cast<size_t>(item)]);
  std::sort(lengths.rbegin(), lengths.rend());
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto ranges = attention_ranges(lengths);
  const bool fit = std::all_of(ranges.begin(), ranges.end(), [&](const AttentionRange& range) {
    return range.shape.tokens() <= most_padded_tokens(tokens) + kFewTokens;
  });
  if (!fit) return;
  for (const AttentionRange& range : ranges) shapes.insert(range.shape);
}

}  // namespace

void PackingSummary::add(const GroupPacking& packing, const PackCost& cost) {
  for (const auto& rank : packing.items) {
    Size of_rank;
    for (const auto& items : rank) {
      const Size of_batch = size_of(items, packing);
      add_shapes(items, packing, attention_shapes);
      micro_batch_tokens = std::max(micro_batch_tokens, of_batch.tokens);
      micro_batch_labels = std::max(micro_batch_labels, of_batch.labels);
      of_rank.tokens += of_batch.tokens;
      of_rank.labels += of_batch.labels;
    }
    rank_step_tokens = std::max(rank_step_tokens, of_rank.tokens);
    rank_step_labels = std::max(rank_step_labels, of_rank.labels);
    tokens += of_rank.tokens;
  }
  for (const int64_t length : packing.lengths) longest = std::max(longest, length);
  conversations += packing.num_conversations;
  micro_batches += static_cast<int64_t>(packing.items.front().size());
  balance += (fastsft::balance(packing.items, packing.lengths, cost) - balance) /
             static_cast<double>(++steps);
}

}  // namespace fastsft
