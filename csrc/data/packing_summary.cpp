#include "data/step_source.h"

#include <algorithm>

namespace fastsft {
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

}  // namespace

void PackingSummary::add(const GroupPacking& packing, const PackCost& cost) {
  for (const auto& rank : packing.items) {
    Size of_rank;
    for (const auto& items : rank) {
      const Size of_batch = size_of(items, packing);
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
