#include "data/group_plan.h"

#include <algorithm>

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

// Cuts a rank's conversations into micro-batches, first come first served.
class Packer {
 public:
  explicit Packer(int64_t budget) : budget_(budget) {}

  void add(int64_t row, int64_t length, double weight) {
    if (plan_.micro_batches.empty() || used_ + length > budget_) open();
    plan_.micro_batches.back().push_back(row);
    plan_.weights.back().push_back(weight);
    used_ += length;
  }
  GroupPlan& plan() { return plan_; }

 private:
  void open() {
    plan_.micro_batches.emplace_back();
    plan_.weights.emplace_back();
    used_ = 0;
  }

  int64_t budget_;
  int64_t used_ = 0;
  GroupPlan plan_;
};

Packer pack_rank(const Table& table, const ReferenceGroup& group, int64_t rank, LossNorm norm,
                 int64_t num_targets, int64_t budget) {
  Packer packer(budget);
  for (size_t batch = 0; batch < group[rank].size(); ++batch) {
    const double divide = divisor(table, group, rank, batch, norm, num_targets);
    for (int64_t row : group[rank][batch]) {
      if (table.targets_of(row) > 0) packer.add(row, table.lengths[row], 1.0 / divide);
    }
  }
  return packer;
}

}  // namespace

LossNorm loss_norm(const std::string& name, bool average_tokens_across_devices) {
  if (name == "micro_batch") return LossNorm::kMicroBatch;
  require(name == "global_tokens", "unknown loss_norm \"", name,
          "\"; known: global_tokens, micro_batch");
  return average_tokens_across_devices ? LossNorm::kGlobalTokens : LossNorm::kRankTokens;
}

GroupPlan plan_group(std::span<const int64_t> lengths, std::span<const int64_t> target_counts,
                     const ReferenceGroup& group, int64_t rank, LossNorm norm,
                     int64_t micro_batch_tokens) {
  require(lengths.size() == target_counts.size(), "expected one length for each of ",
          target_counts.size(), " target counts, got ", lengths.size());
  require(rank >= 0 && rank < static_cast<int64_t>(group.size()), "rank ", rank, " is not one of ",
          group.size(), " ranks");
  require(micro_batch_tokens > 0, "expected micro_batch_tokens of at least 1, got ",
          micro_batch_tokens);
  const Table table{lengths, target_counts};
  int64_t num_targets = 0;
  for (const auto& batches : group) num_targets += table.targets_of(batches);

  GroupPlan plan;
  size_t count = 1;
  for (size_t other = 0; other < group.size(); ++other) {
    Packer packer =
        pack_rank(table, group, static_cast<int64_t>(other), norm, num_targets, micro_batch_tokens);
    count = std::max(count, packer.plan().micro_batches.size());
    if (static_cast<int64_t>(other) == rank) plan = std::move(packer.plan());
  }
  plan.micro_batches.resize(count);
  plan.weights.resize(count);
  plan.num_targets = num_targets;
  return plan;
}

}  // namespace fastsft
