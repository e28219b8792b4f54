#pragma once

#include "data/group_plan.h"

namespace fastsft {

// How the optimizer steps of a pass were cut, over all ranks.
struct PackingSummary {
  int64_t steps = 0;
  int64_t conversations = 0;  // those that teach nothing included
  int64_t tokens = 0;         // of the conversations that are computed
  int64_t micro_batches = 0;  // of one rank, summed over steps
  // The most of one micro-batch, and of one rank in one step.
  int64_t micro_batch_tokens = 0;
  int64_t micro_batch_labels = 0;
  int64_t rank_step_tokens = 0;
  int64_t rank_step_labels = 0;
  int64_t longest = 0;  // conversation
  double balance = 0;   // mean over steps; packer.h says of what

  void add(const GroupPacking& packing, const PackCost& cost);
};

}  // namespace fastsft
