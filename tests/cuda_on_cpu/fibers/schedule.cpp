#include "fibers/schedule.h"

#include <algorithm>
#include <numeric>

namespace cuda_on_cpu {

Schedule& schedule() {
  static Schedule held;
  return held;
}

std::vector<uint64_t> order_of_blocks(uint64_t count, std::mt19937& random) {
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (schedule().order == Order::kReverse) std::reverse(order.begin(), order.end());
  if (schedule().order == Order::kRandom || schedule().order == Order::kWarpAheadRandom) {
    std::shuffle(order.begin(), order.end(), random);
  }
  return order;
}

}  // namespace cuda_on_cpu
