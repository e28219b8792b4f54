#include "data/step_source.h"

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

}  // namespace fastsft
