#pragma once

#include "data/group_plan.h"
#include "data/sampler.h"

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

struct StepSourceOptions {
  BatchShape shape;
  int64_t accumulation = 1;
  LossNorm norm = LossNorm::kGlobalTokens;
  PackOptions pack;
};

// The optimizer steps of a run, from the rows' lengths to a rank's micro-batches. `order` is one
// epoch's (sampler.h). Every rank makes one with the same values.
class StepSource {
 public:
  // Of each row (RowCounts).
  StepSource(std::vector<int64_t> lengths, std::vector<int64_t> target_counts,
             std::vector<int64_t> label_counts, const StepSourceOptions& options);

  GroupPlan plan(std::span<const int64_t> order, int64_t step, int64_t rank) const;
  // Of the first `steps` steps.
  PackingSummary summary(std::span<const int64_t> order, int64_t steps) const;

 private:
  GroupPacking pack(std::span<const int64_t> order, int64_t step) const;

  std::vector<int64_t> lengths_, target_counts_, label_counts_;
  StepSourceOptions options_;
};

}  // namespace fastsft
