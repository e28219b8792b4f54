#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/packer.h"

namespace fastsft {

// Divisor of a step's token losses (docs/spec/trainer_semantics.md, sections 6 and 7).
enum class LossNorm {
  kGlobalTokens,  // number of targets of the group, over all ranks
  kGlobalLabels,  // number of labels of the group before the shift, first tokens of rows included
  kRankLabels,    // number of labels of the rank's group; then the mean over ranks
  kRankTokens,    // number of targets of the rank's group; then the mean over ranks
  // number of targets of the reference micro-batch; then the mean over micro-batches and ranks
  kMicroBatch,
};

// Returns the divisor for a name: "global_tokens", "global_labels" or "micro_batch". Throws
// std::invalid_argument for other names.
LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices);

// The rows of one optimizer step: [rank][reference micro-batch][row].
using ReferenceGroup = std::vector<std::vector<std::vector<int64_t>>>;

// One rank's work in an optimizer step without padding. Every conversation carries its loss weight,
// so it may move to any rank and micro-batch. Conversations without targets are left out.
struct GroupPlan {
  // The same number of micro-batches on every rank, at least 1; they may be empty.
  std::vector<std::vector<int64_t>> micro_batches;
  std::vector<std::vector<double>> weights;  // [micro-batch][row], as micro_batches
  int64_t num_targets = 0;                   // of the whole group, on all ranks
  int64_t num_conversations = 0;  // of the whole group, including conversations without targets
  int64_t num_tokens = 0;         // of the whole group, including conversations without targets
};

struct PackOptions {
  // micro-batch token budget; a longer conversation gets a micro-batch of its own
  int64_t micro_batch_tokens = 0;
  PackCost cost;
};

// The distribution of a group over all ranks. `rows` are the rows that have targets; `items` is
// indexed [rank][micro-batch] and holds indices into `rows`.
struct GroupPacking {
  std::vector<int64_t> rows;
  std::vector<int64_t> lengths;  // of each row in `rows`
  std::vector<int64_t> targets;  // of each row in `rows`
  std::vector<double> weights;   // loss weight of each row in `rows`
  StepPacking items;
  int64_t num_targets = 0;
  int64_t num_conversations = 0;
  int64_t num_tokens = 0;
};

// Numbers of tokens, targets and labels of each row of a data set. Labels are counted before the
// shift to the next token, targets after it.
struct RowCounts {
  std::span<const int64_t> lengths, targets, labels;
};

// Distributes a group over ranks and micro-batches. Deterministic, so every rank computes the same
// result.
GroupPacking pack_group(const RowCounts& rows, const ReferenceGroup& group, LossNorm norm,
                        const PackOptions& options);

// Returns one rank's part of a packing.
GroupPlan plan_of_rank(const GroupPacking& packing, int64_t rank);

}  // namespace fastsft
