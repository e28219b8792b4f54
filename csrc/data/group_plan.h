#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/packer.h"

namespace fastsft {

// What a token loss of the group is divided by (docs/spec/trainer_semantics.md, sections 6 and 7).
enum class LossNorm {
  kGlobalTokens,  // the targets of the whole group on all ranks
  kGlobalLabels,  // its labels before the shift: those of a row's first token too
  kRankLabels,    // the labels of the rank's group, then the mean over ranks
  kRankTokens,    // the targets of the rank's group, then the mean over ranks
  kMicroBatch,    // the targets of the reference micro-batch, then the mean over micro-batches and
                  // ranks
};

// "global_tokens", "global_labels" or "micro_batch"; std::invalid_argument otherwise.
LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices);

// The conversations of one optimizer step: [rank][reference micro-batch][row].
using ReferenceGroup = std::vector<std::vector<std::vector<int64_t>>>;

// One rank's share of an optimizer step without padding. A conversation carries its loss weight, so
// it may move to any rank and micro-batch; those that teach nothing are left out.
struct GroupPlan {
  std::vector<std::vector<int64_t>>
      micro_batches;  // as many on every rank, at least one; empty ones allowed
  std::vector<std::vector<double>> weights;  // parallel to micro_batches
  int64_t num_targets = 0;                   // of the whole group
  int64_t num_conversations = 0;             // likewise, those that teach nothing included
  int64_t num_tokens = 0;                    // likewise
};

struct PackOptions {
  int64_t micro_batch_tokens = 0;  // of one micro-batch; a longer conversation gets its own
  PackCost cost;
};

// How all ranks share a group: `items` of [rank][micro-batch] are positions in `rows`, the
// conversations that teach something.
struct GroupPacking {
  std::vector<int64_t> rows;
  std::vector<int64_t> lengths;  // parallel to rows
  std::vector<int64_t> targets;  // likewise
  std::vector<double> weights;   // likewise
  StepPacking items;
  int64_t num_targets = 0;
  int64_t num_conversations = 0;
  int64_t num_tokens = 0;
};

// What is known of each row. Labels are counted before the shift, targets after it.
struct RowCounts {
  std::span<const int64_t> lengths, targets, labels;
};

// Deterministic: every rank computes the same.
GroupPacking pack_group(const RowCounts& rows, const ReferenceGroup& group, LossNorm norm,
                        const PackOptions& options);

GroupPlan plan_of_rank(const GroupPacking& packing, int64_t rank);

}  // namespace fastsft
