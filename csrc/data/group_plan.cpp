#include "data/group_plan.h"

#include "core/error.h"

namespace fastsft {
namespace {

struct Table {
  std::span<const int64_t> lengths;
  std::span<const int64_t> targets;

  int64_t targets_of(int64_t row) const {
    require(row >= 0 && row < static_cast<int64_t>(targets.size()), "row ", row,
            " is not in a data set of ", targets.size(), " rows");
    return targets[row];
  }
  int64_t targets_of(const std::vector<int64_t>& rows) const {
    int64_t sum = 0;
    for (int64_t row : rows) sum += targets_of(row);
    return sum;
  }
  int64_t targets_of(const std::vector<std::vector<int64_t>>& batches) const {
    int64_t sum = 0;
    for (const auto& rows : batches) sum += targets_of(rows);
    return sum;
  }
};

double divisor(const Table& table, const ReferenceGroup& group, int64_t rank, size_t batch,
               LossNorm norm, int64_t num_targets) {
  const auto ranks = static_cast<double>(group.size());
  const auto& batches = group[rank];
  switch (norm) {
    case LossNorm::kGlobalTokens:
      return static_cast<double>(num_targets);
    case LossNorm::kRankTokens:
      return static_cast<double>(table.targets_of(batches)) * ranks;
    case LossNorm::kMicroBatch:
      break;
  }
  return static_cast<double>(table.targets_of(batches[batch])) *
         static_cast<double>(batches.size()) * ranks;
}

// The conversations that teach something, in the reference's order, with their weights.
void add_conversations(const Table& table, const ReferenceGroup& group, LossNorm norm,
                       GroupPacking& packing) {
  for (size_t rank = 0; rank < group.size(); ++rank) {
    for (size_t batch = 0; batch < group[rank].size(); ++batch) {
      const double divide =
          divisor(table, group, static_cast<int64_t>(rank), batch, norm, packing.num_targets);
      for (int64_t row : group[rank][batch]) {
        ++packing.num_conversations;
        packing.num_tokens += table.lengths[row];
        if (table.targets_of(row) == 0) continue;
        packing.rows.push_back(row);
        packing.lengths.push_back(table.lengths[row]);
        packing.targets.push_back(table.targets_of(row));
        packing.weights.push_back(1.0 / divide);
      }
    }
  }
}

}  // namespace

LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices) {
  if (name == "micro_batch") return LossNorm::kMicroBatch;
  require(name == "global_tokens", "unknown loss_norm \"", name,
          "\"; known: global_tokens, micro_batch");
  return average_tokens_across_devices ? LossNorm::kGlobalTokens : LossNorm::kRankTokens;
}

GroupPacking pack_group(std::span<const int64_t> lengths, std::span<const int64_t> target_counts,
                        const ReferenceGroup& group, LossNorm norm, const PackOptions& options) {
  require(lengths.size() == target_counts.size(), "expected one length for each of ",
          target_counts.size(), " target counts, got ", lengths.size());
  const Table table{lengths, target_counts};
  GroupPacking packing;
  for (const auto& batches : group) packing.num_targets += table.targets_of(batches);
  add_conversations(table, group, norm, packing);
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
