#pragma once

#include "data/group_plan.h"
#include "data/packing_summary.h"
#include "data/sampler.h"

namespace fastsft {

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
