#include "data/group_plan.h"

#include "core/error.h"

namespace fastsft {
namespace {

using Rows = std::vector<int64_t>;

int64_t count_of(std::span<const int64_t> counts, int64_t row) {
  require(row >= 0 && row < static_cast<int64_t>(counts.size()), "row ", row,
          " is not in a data set of ", counts.size(), " rows");
  return counts[static_cast<size_t>(row)];
}

int64_t count_of(std::span<const int64_t> counts, const Rows& rows) {
  int64_t sum = 0;
  for (const int64_t row : rows) sum += count_of(counts, row);
  return sum;
}

int64_t count_of(std::span<const int64_t> counts, const std::vector<Rows>& batches) {
  int64_t sum = 0;
  for (const Rows& rows : batches) sum += count_of(counts, rows);
  return sum;
}

int64_t count_of(std::span<const int64_t> counts, const ReferenceGroup& group) {
  int64_t sum = 0;
  for (const auto& batches : group) sum += count_of(counts, batches);
  return sum;
}

// Returns the number by which losses in one reference micro-batch are divided. `whole`: the target
// or label count in the whole group; used by the global norms only.
double divisor(const RowCounts& rows, const ReferenceGroup& group, size_t rank, size_t batch,
               LossNorm norm, int64_t whole) {
  const auto ranks = static_cast<double>(group.size());
  const auto& batches = group[rank];
  switch (norm) {
    case LossNorm::kGlobalTokens:
    case LossNorm::kGlobalLabels:
      return static_cast<double>(whole);
    case LossNorm::kRankTokens:
      return static_cast<double>(count_of(rows.targets, batches)) * ranks;
    case LossNorm::kRankLabels:
      return static_cast<double>(count_of(rows.labels, batches)) * ranks;
    case LossNorm::kMicroBatch:
      break;
  }
  return static_cast<double>(count_of(rows.targets, batches[batch])) *
         static_cast<double>(batches.size()) * ranks;
}

// Adds the rows that have targets and their loss weights to `packing`, in the order of `group`.
void add_conversations(const RowCounts& rows, const ReferenceGroup& group, LossNorm norm,
                       GroupPacking& packing) {
  const bool by_labels = norm == LossNorm::kGlobalLabels;
  const int64_t whole = by_labels ? count_of(rows.labels, group) : packing.num_targets;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    for (size_t batch = 0; batch < group[rank].size(); ++batch) {
      const double divide = divisor(rows, group, rank, batch, norm, whole);
      for (const int64_t row : group[rank][batch]) {
        const int64_t targets = count_of(rows.targets, row), length = count_of(rows.lengths, row);
        ++packing.num_conversations;
        packing.num_tokens += length;
        if (targets == 0) continue;
        packing.rows.push_back(row);
        packing.lengths.push_back(length);
        packing.targets.push_back(targets);
        packing.weights.push_back(1.0 / divide);
      }
    }
  }
}

}  // namespace

LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices) {
  if (name == "micro_batch") return LossNorm::kMicroBatch;
  if (name == "global_labels") {
    return average_tokens_across_devices ? LossNorm::kGlobalLabels : LossNorm::kRankLabels;
  }
  require(name == "global_tokens", "unknown loss_norm \"", name,
          "\"; known: global_tokens, global_labels, micro_batch");
  return average_tokens_across_devices ? LossNorm::kGlobalTokens : LossNorm::kRankTokens;
}

GroupPacking pack_group(const RowCounts& rows, const ReferenceGroup& group, LossNorm norm,
                        const PackOptions& options) {
  require(rows.lengths.size() == rows.targets.size() && rows.labels.size() == rows.targets.size(),
          "expected a length and a label count for each of ", rows.targets.size(),
          " target counts, got ", rows.lengths.size(), " and ", rows.labels.size());
  GroupPacking packing{.num_targets = count_of(rows.targets, group)};
  add_conversations(rows, group, norm, packing);
  packing.items = pack_step(packing.lengths, static_cast<int64_t>(group.size()),
                            options.micro_batch_tokens, options.cost);
  return packing;
}

GroupPlan plan_of_rank(const GroupPacking& packing, int64_t rank) {
  require(rank >= 0 && rank < static_cast<int64_t>(packing.items.size()), "rank ", rank,
          " is not one of ", packing.items.size(), " ranks");
  GroupPlan plan{.num_targets = packing.num_targets,
                 .num_conversations = packing.num_conversations,
                 .num_tokens = packing.num_tokens};
  for (const auto& items : packing.items[static_cast<size_t>(rank)]) {
    auto& rows = plan.micro_batches.emplace_back();
    auto& weights = plan.weights.emplace_back();
    for (const int32_t item : items) {
      rows.push_back(packing.rows[static_cast<size_t>(item)]);
      weights.push_back(packing.weights[static_cast<size_t>(item)]);
    }
  }
  return plan;
}

}  // namespace fastsft
