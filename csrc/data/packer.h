#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// What computing a conversation costs, in any unit: its matrix products grow with its length, its
// attention with the square. `padded`: a micro-batch is computed with all conversations as long as
// its longest.
struct PackCost {
  double linear = 1;
  double quadratic = 0;
  bool padded = false;

  double of(int64_t length) const {
    const auto tokens = static_cast<double>(length);
    return linear * tokens + quadratic * tokens * tokens;
  }
};

// Conversations (by their index in `lengths`) of [rank][micro-batch], as many micro-batches on
// every rank.
using StepPacking = std::vector<std::vector<std::vector<int32_t>>>;

// Cuts the conversations of one optimizer step over `ranks` and micro-batches: each in exactly one;
// at most `micro_batch_tokens` tokens, with padding, in a micro-batch, a longer conversation alone
// in one; as few micro-batches a rank as that allows; and cost even over the micro-batches that
// ranks compute at the same time, and over ranks. The micro-batches of largest cost come first, so
// that buffers grow once. At least one micro-batch, empty ones allowed. Inside one the order of
// `lengths` is kept. Deterministic.
StepPacking pack_step(std::span<const int64_t> lengths, int64_t ranks, int64_t micro_batch_tokens,
                      const PackCost& cost);

// The time of a step is that of the most expensive micro-batch of each round, summed over rounds;
// this is the share of it in which ranks work: 1 when every round is even.
double balance(const StepPacking& packing, std::span<const int64_t> lengths, const PackCost& cost);

}  // namespace fastsft
