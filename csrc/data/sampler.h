#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// The order in which one epoch visits `size` rows: torch.randperm(size) with a generator seeded by
// seed + epoch, bit for bit (docs/spec/trainer_semantics.md, section 3). Throws
// std::invalid_argument from kMaxOrderSize rows on, where torch draws 64-bit numbers.
std::vector<int64_t> epoch_order(int64_t size, int64_t seed, int64_t epoch);

inline constexpr int64_t kMaxOrderSize = 0xffffffffll / 20;

// How an order is dealt out: rank k's micro-batch s holds `batch_size` rows from position (s *
// world_size + k) * batch_size.
struct BatchShape {
  int64_t batch_size = 1;
  int64_t world_size = 1;
  bool drop_last = false;
};

// Micro-batches of one rank in one pass over `size` rows; the same on every rank.
int64_t micro_batch_count(int64_t size, const BatchShape& shape);

// The rows of rank `rank`, micro-batch by micro-batch, as accelerate's BatchSamplerShard deals them
// with even_batches (docs/spec/trainer_semantics.md, section 4). One rank: the last one may be
// short. Several: what is missing at the end is filled from the beginning of the order.
std::vector<std::vector<int64_t>> rank_micro_batches(std::span<const int64_t> order, int64_t rank,
                                                     const BatchShape& shape);

// The rows of all ranks of one optimizer step: micro-batches [step * accumulation, (step + 1) *
// accumulation) of every rank, fewer at the end of the pass. [rank][micro-batch][row].
std::vector<std::vector<std::vector<int64_t>>> reference_group(std::span<const int64_t> order,
                                                               int64_t step, int64_t accumulation,
                                                               const BatchShape& shape);

}  // namespace fastsft
