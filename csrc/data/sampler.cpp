#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.h"

namespace fastsft {
namespace {

int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

void check_shape(const BatchShape& shape) {
  require(shape.batch_size > 0, "expected a batch size of at least 1, got ", shape.batch_size);
  require(shape.world_size > 0, "expected at least 1 rank, got ", shape.world_size);
}

std::vector<int64_t> micro_batch(std::span<const int64_t> order, int64_t begin,
                                 const BatchShape& shape) {
  const auto size = static_cast<int64_t>(order.size());
  const int64_t wrap = std::min(size, shape.world_size * shape.batch_size);
  std::vector<int64_t> rows;
  for (int64_t at = begin; at < begin + shape.batch_size; ++at) {
    if (at < size) {
      rows.push_back(order[at]);
    } else if (shape.world_size > 1) {
      rows.push_back(order[(at - size) % wrap]);
    }
  }
  return rows;
}

}  // namespace

std::vector<int64_t> epoch_order(int64_t size, int64_t seed, int64_t epoch) {
  require(size >= 0 && size < kMaxOrderSize, "expected fewer than ", kMaxOrderSize,
          " rows to shuffle, got ", size, "; split the data set");
  // torch's generator keeps the low 32 bits of a seed.
  std::mt19937 engine(
      static_cast<uint32_t>(static_cast<uint64_t>(seed) + static_cast<uint64_t>(epoch)));
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = 0; i < size - 1; ++i) {
    std::swap(order[i], order[i + static_cast<int64_t>(engine()) % (size - i)]);
  }
  return order;
}

int64_t micro_batch_count(int64_t size, const BatchShape& shape) {
  check_shape(shape);
  if (shape.drop_last) return size / shape.batch_size / shape.world_size;
  return ceil_div(ceil_div(size, shape.batch_size), shape.world_size);
}

std::vector<std::vector<int64_t>> rank_micro_batches(std::span<const int64_t> order, int64_t rank,
                                                     const BatchShape& shape) {
  const int64_t count = micro_batch_count(static_cast<int64_t>(order.size()), shape);
  require(rank >= 0 && rank < shape.world_size, "rank ", rank, " is not one of ", shape.world_size,
          " ranks");
  std::vector<std::vector<int64_t>> batches;
  for (int64_t step = 0; step < count; ++step) {
    batches.push_back(
        micro_batch(order, (step * shape.world_size + rank) * shape.batch_size, shape));
  }
  return batches;
}

std::vector<std::vector<std::vector<int64_t>>> reference_group(std::span<const int64_t> order,
                                                               int64_t step, int64_t accumulation,
                                                               const BatchShape& shape) {
  const int64_t count = micro_batch_count(static_cast<int64_t>(order.size()), shape);
  require(accumulation > 0 && step >= 0 && step * accumulation < count, "step ", step, " of ",
          accumulation, " micro-batches is not in a pass of ", count);
  const int64_t end = std::min(count, (step + 1) * accumulation);
  std::vector<std::vector<std::vector<int64_t>>> group(static_cast<size_t>(shape.world_size));
  for (int64_t rank = 0; rank < shape.world_size; ++rank) {
    for (int64_t at = step * accumulation; at < end; ++at) {
      const int64_t begin = (at * shape.world_size + rank) * shape.batch_size;
      group[static_cast<size_t>(rank)].push_back(micro_batch(order, begin, shape));
    }
  }
  return group;
}

}  // namespace fastsft
