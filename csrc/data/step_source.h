#pragma once

#include <set>

#include "data/attention_ranges.h"
#include "data/group_plan.h"
#include "data/sampler.h"

namespace fastsft {

// Statistics on how an epoch's optimizer steps were packed, over all ranks.
struct PackingSummary {
  int64_t steps = 0;
  int64_t conversations = 0;  // including conversations without targets
  int64_t tokens = 0;         // tokens in the conversations that have targets
  int64_t micro_batches = 0;  // one rank's micro-batches, summed over steps
  // Largest values found: in a micro-batch, and in one rank's part of a step.
  int64_t micro_batch_tokens = 0;
  int64_t micro_batch_labels = 0;
  int64_t rank_step_tokens = 0;
  int64_t rank_step_labels = 0;
  int64_t longest = 0;                     // tokens in the longest conversation
  double balance = 0;                      // the mean over steps of `balance` (packer.h)
  std::set<PaddedShape> attention_shapes;  // that cuDNN would compute

  void add(const GroupPacking& packing, const PackCost& cost);
};

struct StepSourceOptions {
  BatchShape shape;
  int64_t accumulation = 1;
  LossNorm norm = LossNorm::kGlobalTokens;
  PackOptions pack;
};

// Plans a run's optimizer steps: turns row lengths into each rank's micro-batches. `order` is one
// epoch's row order (sampler.h). All ranks must construct it with the same values.
class StepSource {
 public:
  // Each vector has an entry per row (RowCounts).
  StepSource(std::vector<int64_t> lengths, std::vector<int64_t> target_counts,
             std::vector<int64_t> label_counts, const StepSourceOptions& options);

  GroupPlan plan(std::span<const int64_t> order, int64_t step, int64_t rank) const;
  // Returns statistics on the first `steps` steps.
  PackingSummary summary(std::span<const int64_t> order, int64_t steps) const;

 private:
  GroupPacking pack(std::span<const int64_t> order, int64_t step) const;

  std::vector<int64_t> lengths_, target_counts_, label_counts_;
  StepSourceOptions options_;
};

}  // namespace fastsft
