#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// A conversation's computing cost, in any unit: matrix products grow linearly with its length,
// attention with the square. `padded`: all conversations in a micro-batch are computed at the
// longest conversation's length.
struct PackCost {
  double linear = 1;
  double quadratic = 0;
  bool padded = false;

  double of(int64_t length) const {
    const auto tokens = static_cast<double>(length);
    return linear * tokens + quadratic * tokens * tokens;
  }
};

// Conversations, as indices into `lengths`, by [rank][micro-batch]. All ranks have the same
// micro-batch count.
using StepPacking = std::vector<std::vector<std::vector<int32_t>>>;

// Distributes an optimizer step's conversations over `ranks` and micro-batches. A micro-batch has
// at most `micro_batch_tokens` tokens, padding included; a longer conversation gets its own
// micro-batch. The micro-batch count is the smallest possible, but at least 1 per rank; some
// micro-batches may be empty. The cost is balanced between the micro-batches that ranks compute at
// the same time, and between ranks. The most expensive micro-batches come first, so that buffers
// grow only once. Conversations inside a micro-batch keep their order in `lengths`. Deterministic.
StepPacking pack_step(std::span<const int64_t> lengths, int64_t ranks, int64_t micro_batch_tokens,
                      const PackCost& cost);

// Returns the fraction of a step's time in which ranks compute, 1 if the costs are even. In each
// round every rank computes one micro-batch, and the most expensive one determines the round's
// time.
double balance(const StepPacking& packing, std::span<const int64_t> lengths, const PackCost& cost);

}  // namespace fastsft
