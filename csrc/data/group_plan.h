#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/packer.h"

namespace fastsft {

// Divisor of a step's token losses (docs/spec/trainer_semantics.md, sections 6 and 7).
enum class LossNorm {
  kGlobalTokens,  // target count in the group, over all ranks
  kGlobalLabels,  // label count in the group before the shift, including each row's first token
  kRankLabels,    // label count in the rank's group; then the mean over ranks
  kRankTokens,    // target count in the rank's group; then the mean over ranks
  // target count in the reference micro-batch; then the mean over micro-batches and ranks
  kMicroBatch,
};

// Returns the divisor for a name: "global_tokens", "global_labels" or "micro_batch". Throws
// std::invalid_argument for other names.
LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices);

// The rows in one optimizer step: [rank][reference micro-batch][row].
using ReferenceGroup = std::vector<std::vector<std::vector<int64_t>>>;

// One rank's work in an optimizer step without padding. Every conversation carries its loss weight,
// so it may move to any rank and micro-batch. Conversations without targets are left out.
struct GroupPlan {
  // All ranks have equally many micro-batches, at least 1; some may be empty.
  std::vector<std::vector<int64_t>> micro_batches;
  std::vector<std::vector<double>> weights;  // [micro-batch][row], as micro_batches
  int64_t num_targets = 0;                   // targets in the group, over all ranks
  int64_t num_conversations = 0;  // conversations in the group, including those without targets
  int64_t num_tokens = 0;         // tokens in the group, including conversations without targets
};

struct PackOptions {
  // micro-batch token budget; a longer conversation gets its own micro-batch
  int64_t micro_batch_tokens = 0;
  PackCost cost;
};

// Distribution of a group over all ranks. `rows` are the rows that have targets; `items` is indexed
// [rank][micro-batch] and holds indices into `rows`.
struct GroupPacking {
  std::vector<int64_t> rows;
  std::vector<int64_t> lengths;  // token count for each entry in `rows`
  std::vector<int64_t> targets;  // target count for each entry in `rows`
  std::vector<double> weights;   // loss weight for each entry in `rows`
  StepPacking items;
  int64_t num_targets = 0;
  int64_t num_conversations = 0;
  int64_t num_tokens = 0;
};

// Token, target and label counts for each row in a data set. Labels are counted before the shift to
// the next token, targets after it.
struct RowCounts {
  std::span<const int64_t> lengths, targets, labels;
};

// Distributes a group over ranks and micro-batches. Deterministic, so every rank computes the same
// result.
GroupPacking pack_group(const RowCounts& rows, const ReferenceGroup& group, LossNorm norm,
                        const PackOptions& options);

// Returns one rank's micro-batches from a packing.
GroupPlan plan_of_rank(const GroupPacking& packing, int64_t rank);

}  // namespace fastsft
