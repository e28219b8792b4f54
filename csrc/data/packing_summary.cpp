#include "data/packing_summary.h"

#include <algorithm>

namespace fastsft {

void PackingSummary::add(const GroupPacking& packing, const PackCost& cost) {
  for (const auto& rank : packing.items) {
    int64_t of_rank = 0;
    for (const auto& items : rank) {
      int64_t of_batch = 0;
      for (const int32_t item : items) of_batch += packing.lengths[static_cast<size_t>(item)];
      largest_micro_batch = std::max(largest_micro_batch, of_batch);
      of_rank += of_batch;
    }
    largest_rank_step = std::max(largest_rank_step, of_rank);
    tokens += of_rank;
  }
  conversations += packing.num_conversations;
  micro_batches += static_cast<int64_t>(packing.items.front().size());
  balance += (fastsft::balance(packing.items, packing.lengths, cost) - balance) /
             static_cast<double>(++steps);
}

}  // namespace fastsft
