#include "data/attention_ranges.h"

#include <limits>

namespace fastsft {

std::vector<AttentionRange> attention_ranges(std::span<const int64_t> lengths) {
  if (lengths.empty()) return {};
  const size_t size = lengths.size();
  std::vector<int64_t> longest_from(lengths.begin(), lengths.end());
  for (size_t i = size - 1; i-- > 0;) {
    longest_from[i] = std::max(longest_from[i], longest_from[i + 1]);
  }
  const auto shape_of = [](size_t conversations, int64_t longest) {
    return padded_shape(static_cast<int64_t>(conversations), longest);
  };
  std::vector<AttentionRange> best = {
      {static_cast<int64_t>(size), shape_of(size, longest_from.front())}};
  int64_t limit = best.front().shape.tokens() * 3 / 4 + 1;
  int64_t longest_before = 0;
  for (size_t i = 1; i < size; ++i) {
    longest_before = std::max(longest_before, lengths[i - 1]);
    const PaddedShape first = shape_of(i, longest_before);
    const PaddedShape second = shape_of(size - i, longest_from[i]);
    if (first.tokens() + second.tokens() >= limit) continue;
    limit = first.tokens() + second.tokens();
    best = {{static_cast<int64_t>(i), first}, {static_cast<int64_t>(size - i), second}};
  }
  return best;
}

namespace {

// Writes a range's lists to `to`. `boundaries`: of the range's conversations and the end of the
// last.
void write_lists(std::span<const int32_t> boundaries, const PaddedShape& shape,
                 const HeadCounts& heads, std::span<int32_t> to) {
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
  write_offsets(places.lse_offsets, heads.queries);
}

}  // namespace

CudnnInputs cudnn_inputs(std::span<const int32_t> boundaries, const HeadCounts& heads) {
  if (boundaries.back() > std::numeric_limits<int32_t>::max() / heads.row()) return {};
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    lengths.push_back(boundaries[i] - boundaries[i - 1]);
  }
  CudnnInputs inputs;
  size_t first = 0;
  for (const auto& [conversations, shape] : attention_ranges(lengths)) {
    const size_t begin = inputs.lists.size();
    inputs.lists.resize(begin + static_cast<size_t>(list_places(shape, 0).end));
    const auto count = static_cast<size_t>(conversations);
    write_lists(boundaries.subspan(first, count + 1), shape, heads,
                std::span(inputs.lists).subspan(begin));
    inputs.shapes.insert(inputs.shapes.end(), {shape.conversations, shape.longest});
    first += count;
  }
  return inputs;
}

}  // namespace fastsft
