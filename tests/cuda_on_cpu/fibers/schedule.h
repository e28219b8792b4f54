#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace cuda_on_cpu {

// Which thread of a block goes on next, and in which order blocks run.
enum class Order : int {
  kForward,
  kReverse,
  kRandom,          // anew in every turn
  kWarpAhead,       // one warp runs as far as it can, then the next
  kWarpAheadRandom  // the same, in random order of the warps
};

struct Schedule {
  Order order = Order::kForward;
  unsigned seed = 1;
  unsigned char pattern = 0xFF;  // shared memory holds it before each block
};
Schedule& schedule();

std::vector<uint64_t> order_of_blocks(uint64_t count, std::mt19937& random);

// Calls `go_on(thread)` for threads of one turn; go_on says whether the thread was ready.
template <typename GoOn>
bool one_turn(unsigned threads, std::mt19937& random, const GoOn& go_on) {
  const Order order = schedule().order;
  const bool warps = order == Order::kWarpAhead || order == Order::kWarpAheadRandom;
  const unsigned size = warps ? 32 : 1, groups = (threads + size - 1) / size;
  std::vector<unsigned> turn(groups);
  for (unsigned i = 0; i < groups; ++i) turn[i] = order == Order::kReverse ? groups - 1 - i : i;
  if (order == Order::kRandom || order == Order::kWarpAheadRandom) {
    std::shuffle(turn.begin(), turn.end(), random);
  }
  bool any = false;
  for (unsigned group : turn) {
    for (bool ran = true;
         ran;) {  // a single thread stops when it waits, a warp when all its lanes do
      ran = false;
      for (unsigned t = group * size; t < std::min(threads, (group + 1) * size); ++t) {
        ran = go_on(t) || ran;
      }
      any = any || ran;
    }
  }
  return any;
}

}  // namespace cuda_on_cpu
