#include "data/attention_ranges.h"

#include <limits>
#include <numeric>

namespace fastsft {
namespace {

using Ranges = std::vector<AttentionRange>;

// Returns the two ranges of `lengths` for whose shapes `cost` is least; none for one conversation.
template <typename Cost>
Ranges two_ranges(std::span<const int64_t> lengths, const Cost& cost) {
  const size_t size = lengths.size();
  std::vector<int64_t> longest_from(lengths.begin(), lengths.end());
  for (size_t i = size - 1; i-- > 0;) {
    longest_from[i] = std::max(longest_from[i], longest_from[i + 1]);
  }
  Ranges best;
  int64_t least = std::numeric_limits<int64_t>::max(), longest_before = 0;
  for (size_t i = 1; i < size; ++i) {
    longest_before = std::max(longest_before, lengths[i - 1]);
    const auto before = static_cast<int64_t>(i), after = static_cast<int64_t>(size - i);
    const PaddedShape first = padded_shape(before, longest_before);
    const PaddedShape second = padded_shape(after, longest_from[i]);
    if (cost(first.tokens(), second.tokens()) >= least) continue;
    least = cost(first.tokens(), second.tokens());
    best = {{before, first}, {after, second}};
  }
  return best;
}

Ranges::iterator largest(Ranges& ranges) {
  return std::max_element(ranges.begin(), ranges.end(),
                          [](const AttentionRange& a, const AttentionRange& b) {
                            return a.shape.tokens() < b.shape.tokens();
                          });
}

// Divides the largest range so that its larger part is least.
void divide_largest(std::span<const int64_t> lengths, Ranges& ranges) {
  const auto found = largest(ranges);
  int64_t begin = 0;
  for (auto range = ranges.begin(); range != found; ++range) begin += range->conversations;
  const auto own =
      lengths.subspan(static_cast<size_t>(begin), static_cast<size_t>(found->conversations));
  const Ranges parts = two_ranges(own, [](int64_t a, int64_t b) { return std::max(a, b); });
  if (parts.empty()) return;
  *found = parts.back();
  ranges.insert(found, parts.front());
}

}  // namespace

std::vector<AttentionRange> attention_ranges(std::span<const int64_t> lengths) {
  constexpr size_t kMostRanges = 3;
  if (lengths.empty()) return {};
  const auto size = static_cast<int64_t>(lengths.size());
  Ranges ranges = {{size, padded_shape(size, *std::max_element(lengths.begin(), lengths.end()))}};
  const auto sum = [](int64_t a, int64_t b) { return a + b; };
  const Ranges two = two_ranges(lengths, sum);
  if (!two.empty() &&
      4 * sum(two[0].shape.tokens(), two[1].shape.tokens()) <= 3 * ranges.front().shape.tokens()) {
    ranges = two;
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto fits = [&](Ranges& all) {
    return largest(all)->shape.tokens() <= most_padded_tokens(tokens);
  };
  Ranges smaller = ranges;
  while (!fits(smaller) && smaller.size() < kMostRanges) {
    const size_t before = smaller.size();
    divide_largest(lengths, smaller);
    if (smaller.size() == before) break;
  }
  // Flash attention computes ranges that are too large; further calls would not help.
  return fits(smaller) ? smaller : ranges;
}

namespace {

// Writes a range's lists to `to`. `boundaries`: of the range's conversations and the end of the
// last.
void write_lists(std::span<const int32_t> boundaries, const PaddedShape& shape,
                 const HeadShape& heads, std::span<int32_t> to) {
  const ListPlaces places = list_places(shape, 0);
  for (size_t c = 0; c + 1 < boundaries.size(); ++c) {
    to[static_cast<size_t>(places.lengths) + c] = boundaries[c + 1] - boundaries[c];
  }
  const auto write_offsets = [&](int64_t place, int64_t width) {
    for (size_t c = 0; c <= static_cast<size_t>(shape.conversations); ++c) {
      const int64_t token = boundaries[std::min(c, boundaries.size() - 1)];
      to[static_cast<size_t>(place) + c] = static_cast<int32_t>(token * width);
    }
  };
  write_offsets(places.row_offsets, heads.row());
  write_offsets(places.out_offsets, heads.out_row());
  write_offsets(places.lse_offsets, heads.num_heads);
}

}  // namespace

CudnnInputs cudnn_inputs(std::span<const int32_t> boundaries, const HeadShape& heads) {
  if (boundaries.back() > std::numeric_limits<int32_t>::max() / heads.row()) return {};
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    lengths.push_back(boundaries[i] - boundaries[i - 1]);
  }
  CudnnInputs inputs;
  size_t first = 0;
  for (const auto& [conversations, shape] : attention_ranges(lengths)) {
    const auto count = static_cast<size_t>(conversations);
    const auto own = boundaries.subspan(first, count + 1);
    first += count;
    if (own.back() == own.front()) continue;
    const size_t begin = inputs.lists.size();
    inputs.lists.resize(begin + static_cast<size_t>(list_places(shape, 0).end));
    write_lists(own, shape, heads, std::span(inputs.lists).subspan(begin));
    inputs.shapes.insert(inputs.shapes.end(), {shape.conversations, shape.longest});
  }
  return inputs;
}

}  // namespace fastsft
