#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// Computing costs of a conversation, in any unit: matrix products grow linearly with its length,
// attention with the square. `padded`: all conversations of a micro-batch are computed at the
// length of its longest.
struct PackCost {
  double linear = 1;
  double quadratic = 0;
  bool padded = false;

  double of(int64_t length) const {
    const auto tokens = static_cast<double>(length);
    return linear * tokens + quadratic * tokens * tokens;
  }
};

// Conversations, as indices into `lengths`, by [rank][micro-batch]. All ranks have the same number
// of micro-batches.
using StepPacking = std::vector<std::vector<std::vector<int32_t>>>;

// Distributes the conversations of an optimizer step over `ranks` and micro-batches. A micro-batch
// has at most `micro_batch_tokens` tokens, padding included; a longer conversation gets a
// micro-batch of its own. The number of micro-batches is the smallest possible, but at least 1 per
// rank; some may be empty. The cost is balanced between the micro-batches that ranks compute at the
// same time, and between ranks. The most expensive micro-batches come first, so that buffers grow
// only once. Inside a micro-batch the order of `lengths` is kept. Deterministic.
StepPacking pack_step(std::span<const int64_t> lengths, int64_t ranks, int64_t micro_batch_tokens,
                      const PackCost& cost);

// Returns the fraction of a step's time in which ranks compute, 1 if the costs are even. In each
// round every rank computes one micro-batch, and the most expensive one determines the round's
// time.
double balance(const StepPacking& packing, std::span<const int64_t> lengths, const PackCost& cost);

}  // namespace fastsft
