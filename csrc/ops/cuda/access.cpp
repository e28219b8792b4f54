#include "ops/cuda/access.h"

#include <algorithm>

namespace fastsft::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxPacks = 4;
constexpr int kWarpRowsPerBlock = 4;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

int packs_of(int64_t accesses, int threads) {
  for (int packs = 2; packs <= kMaxPacks; packs *= 2) {
    if (accesses <= static_cast<int64_t>(packs) * threads) return packs;
  }
  return 0;
}

}  // namespace

int access_width(int64_t columns, int element_size, uint64_t alignment) {
  const int width = 16 / element_size;
  return columns % width == 0 && alignment % 16 == 0 ? width : 1;
}

RowPlan plan_row(int64_t columns, int width) {
  const int64_t accesses = divide_up(columns, width);
  if (accesses <= kWarp * kMaxPacks) return {kWarp, kWarpRowsPerBlock, packs_of(accesses, kWarp)};
  const int64_t half = divide_up(divide_up(accesses, 2), kWarp) * kWarp;
  const int threads = static_cast<int>(std::min<int64_t>(half, kMaxThreads));
  return {threads, 1, packs_of(accesses, threads)};
}

int64_t blocks_for(int64_t rows, int rows_per_block, int64_t limit) {
  return std::min(divide_up(rows, rows_per_block), limit);
}

}  // namespace fastsft::cuda
