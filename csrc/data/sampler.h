#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// Returns the order in which an epoch visits `size` rows: bit for bit torch.randperm(size) with a
// generator seeded by seed + epoch (docs/spec/trainer_semantics.md, section 3). Throws
// std::invalid_argument for kMaxOrderSize rows and more, for which torch draws 64-bit numbers.
std::vector<int64_t> epoch_order(int64_t size, int64_t seed, int64_t epoch);

inline constexpr int64_t kMaxOrderSize = 0xffffffffll / 20;

// Rule that distributes rows over ranks: micro-batch s on rank k holds the `batch_size` rows from
// position (s * world_size + k) * batch_size on.
struct BatchShape {
  int64_t batch_size = 1;
  int64_t world_size = 1;
  bool drop_last = false;
};

// Returns a rank's micro-batch count in an epoch with `size` rows. It is the same on every rank.
int64_t micro_batch_count(int64_t size, const BatchShape& shape);

// Returns the rows for each micro-batch on rank `rank`, distributed like accelerate's
// BatchSamplerShard with even_batches (docs/spec/trainer_semantics.md, section 4). With one rank
// the last micro-batch may be short; with several, it is filled up with the first rows in the
// order.
std::vector<std::vector<int64_t>> rank_micro_batches(std::span<const int64_t> order, int64_t rank,
                                                     const BatchShape& shape);

// Returns the rows for one optimizer step on all ranks, as [rank][micro-batch][row]: every rank's
// micro-batches [step * accumulation, (step + 1) * accumulation), fewer at the epoch's end.
std::vector<std::vector<std::vector<int64_t>>> reference_group(std::span<const int64_t> order,
                                                               int64_t step, int64_t accumulation,
                                                               const BatchShape& shape);

}  // namespace fastsft
