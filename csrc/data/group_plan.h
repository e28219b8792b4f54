#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fastsft {

// What a token loss of the group is divided by (trainer_semantics.md, sections 6 and 7).
enum class LossNorm {
  kGlobalTokens,  // the targets of the whole group on all ranks
  kRankTokens,    // the targets of the rank's group, then the mean over ranks
  kMicroBatch,    // the targets of the reference micro-batch, then the mean over micro-batches and
                  // ranks
};

// "global_tokens" or "micro_batch"; std::invalid_argument otherwise.
LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices);

// The conversations of one optimizer step: [rank][reference micro-batch][row].
using ReferenceGroup = std::vector<std::vector<std::vector<int64_t>>>;

// One rank's share of an optimizer step without padding. A conversation carries its loss weight, so
// it may move to any micro-batch; those that teach nothing are left out. Rows keep the reference's
// order.
struct GroupPlan {
  std::vector<std::vector<int64_t>>
      micro_batches;  // as many on every rank, at least one; empty ones allowed
  std::vector<std::vector<double>> weights;  // parallel to micro_batches
  int64_t num_targets = 0;                   // of the whole group
};

// `lengths` and `target_counts` are indexed by row. A micro-batch holds at most
// `micro_batch_tokens` tokens; a longer conversation gets its own. Deterministic: every rank
// computes the plans of all.
GroupPlan plan_group(std::span<const int64_t> lengths, std::span<const int64_t> target_counts,
                     const ReferenceGroup& group, int64_t rank, LossNorm norm,
                     int64_t micro_batch_tokens);

}  // namespace fastsft
