#include "data/packer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "core/error.h"
#include "data/best_fit.h"

namespace fastsft {
namespace {

using Bins = std::vector<std::vector<int32_t>>;

// Assigns the most expensive conversation first, each to the cheapest bin that has room. Returns
// nullopt if a conversation fits in no bin.
std::optional<Bins> spread(std::span<const int64_t> lengths, size_t count, int64_t budget,
                           const PackCost& cost) {
  Bins bins(count);
  std::vector<int64_t> used(count, 0);
  std::set<std::pair<double, size_t>> by_cost;
  for (size_t b = 0; b < count; ++b) by_cost.emplace(0.0, b);
  for (const int32_t item : longest_first(lengths, budget)) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    auto at = std::find_if(by_cost.begin(), by_cost.end(), [&](const auto& entry) {
      return bins[entry.second].empty() || used[entry.second] + length <= budget;
    });
    if (at == by_cost.end()) return std::nullopt;
    const auto [before, bin] = *at;
    by_cost.erase(at);
    bins[bin].push_back(item);
    used[bin] += length;
    by_cost.emplace(before + cost.of(length), bin);
  }
  return bins;
}

// Packs items into bins that are padded to their longest item. Items are taken by falling length,
// so that each bin holds items with similar lengths and the bin count is minimal. Item count times
// longest length is at most `capacity`; a longer item gets its own bin. Throws
// std::invalid_argument as pack_best_fit does.
Packing pack_padded(std::span<const int64_t> lengths, int64_t capacity) {
  require(capacity >= 1, "expected a capacity of at least 1, got ", capacity);
  Packing packing;
  for (const int64_t length : lengths) {
    require(length >= 0, "expected lengths of at least 0, got ", length);
  }
  const auto longest = std::ranges::max_element(lengths);
  packing.items =
      longest_first(lengths, longest == lengths.end() ? 1 : std::max<int64_t>(*longest, 1));
  int64_t width = 0, count = 0, end = 0;
  for (const int32_t item : packing.items) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    if (count > 0 && (count + 1) * width > capacity) {
      packing.offsets.push_back(end);
      count = 0;
    }
    if (count == 0) width = length;
    ++count;
    ++end;
  }
  if (count > 0) packing.offsets.push_back(end);
  return packing;
}

Packing pack(std::span<const int64_t> lengths, int64_t budget, const PackCost& cost) {
  return cost.padded ? pack_padded(lengths, budget) : pack_best_fit(lengths, budget);
}

// Returns the packing into at most `count` bins with the smallest possible budget, which evens out
// the bins.
Bins level(std::span<const int64_t> lengths, size_t count, int64_t budget, const PackCost& cost) {
  int64_t low = 1, high = budget;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (pack(lengths, middle, cost).size() <= static_cast<int64_t>(count))
      high = middle;
    else
      low = middle + 1;
  }
  const Packing packing = pack(lengths, high, cost);
  Bins bins(count);
  for (int64_t b = 0; b < packing.size(); ++b) {
    const auto items = packing.bin(b);
    bins[static_cast<size_t>(b)].assign(items.begin(), items.end());
  }
  return bins;
}

double cost_of(std::span<const int32_t> items, std::span<const int64_t> lengths,
               const PackCost& cost) {
  double sum = 0, largest = 0;
  for (const int32_t item : items) {
    const double one = cost.of(lengths[static_cast<size_t>(item)]);
    sum += one;
    largest = std::max(largest, one);
  }
  return cost.padded ? largest * static_cast<double>(items.size()) : sum;
}

// Assigns bins to ranks. Bins with similar costs are computed in the same round; within a round the
// most expensive bin goes to the rank with the least cost so far.
StepPacking deal(Bins bins, std::span<const int64_t> lengths, size_t ranks, const PackCost& cost) {
  std::vector<double> costs;
  for (const auto& bin : bins) costs.push_back(cost_of(bin, lengths, cost));
  std::vector<size_t> order(bins.size()), by_load(ranks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::iota(by_load.begin(), by_load.end(), size_t{0});
  std::vector<double> load(ranks, 0);
  StepPacking packing(ranks);
  for (size_t begin = 0; begin < order.size(); begin += ranks) {
    std::stable_sort(by_load.begin(), by_load.end(),
                     [&](size_t a, size_t b) { return load[a] < load[b]; });
    for (size_t i = 0; i < ranks; ++i) {
      const size_t bin = order[begin + i], rank = by_load[i];
      load[rank] += costs[bin];
      std::sort(bins[bin].begin(), bins[bin].end());
      packing[rank].push_back(std::move(bins[bin]));
    }
  }
  return packing;
}

}  // namespace

double balance(const StepPacking& packing, std::span<const int64_t> lengths, const PackCost& cost) {
  double sum = 0, slowest = 0;
  for (size_t round = 0; round < packing.front().size(); ++round) {
    double dearest = 0;
    for (const auto& rank : packing) {
      const double one = cost_of(rank[round], lengths, cost);
      sum += one;
      dearest = std::max(dearest, one);
    }
    slowest += dearest;
  }
  return slowest > 0 ? sum / (slowest * static_cast<double>(packing.size())) : 1.0;
}

StepPacking pack_step(std::span<const int64_t> lengths, int64_t ranks, int64_t micro_batch_tokens,
                      const PackCost& cost) {
  require(ranks > 0, "expected at least 1 rank, got ", ranks);
  require(micro_batch_tokens > 0, "expected micro_batch_tokens of at least 1, got ",
          micro_batch_tokens);
  require(cost.linear >= 0 && cost.quadratic >= 0 && cost.linear + cost.quadratic > 0,
          "expected costs of at least 0 and not both 0, got ", cost.linear, " and ",
          cost.quadratic);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t budget =
      cost.padded ? micro_batch_tokens : std::min(micro_batch_tokens, std::max<int64_t>(total, 1));
  const int64_t fewest = pack(lengths, budget, cost).size();
  const int64_t rounds = std::max<int64_t>(1, (fewest + ranks - 1) / ranks);
  const auto count = static_cast<size_t>(rounds * ranks), width = static_cast<size_t>(ranks);

  StepPacking packing = deal(level(lengths, count, budget, cost), lengths, width, cost);
  if (cost.padded) return packing;
  if (auto bins = spread(lengths, count, budget, cost)) {
    StepPacking other = deal(std::move(*bins), lengths, width, cost);
    if (balance(other, lengths, cost) >= balance(packing, lengths, cost)) packing.swap(other);
  }
  return packing;
}

}  // namespace fastsft
