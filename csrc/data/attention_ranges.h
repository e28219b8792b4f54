#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// A model's attention heads, and the rows that they take.
struct HeadShape {
  int64_t num_heads = 0, num_key_value_heads = 0, head_dim = 0;

  // Elements of a token in the fused rows of queries, keys and values, and in the output.
  int64_t row() const { return (num_heads + 2 * num_key_value_heads) * head_dim; }
  int64_t out_row() const { return num_heads * head_dim; }
  bool grouped() const { return num_heads != num_key_value_heads; }
  auto operator<=>(const HeadShape&) const = default;
};

// A shape that cuDNN compiles: up to `conversations` conversations of up to `longest` tokens. Both
// are powers of two, so that a run has few shapes.
struct PaddedShape {
  int64_t conversations = 0, longest = 0;

  int64_t tokens() const { return conversations * longest; }
  auto operator<=>(const PaddedShape&) const = default;
};

inline PaddedShape padded_shape(int64_t conversations, int64_t longest) {
  constexpr int64_t kTile = 128;  // tokens that a block of cuDNN's kernels computes
  const auto rounded_up = [](int64_t value) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
  };
  return {rounded_up(conversations), std::max(rounded_up(longest), kTile)};
}

// Returns the most tokens to which a range of a micro-batch with `tokens` tokens may be padded. It
// is the limit for cuDNN's scratch memory (cuda::cudnn_workspace_limit) in tokens.
constexpr int64_t most_padded_tokens(int64_t tokens) { return 4 * (tokens + tokens / 100); }

// Neighbouring conversations that one call of cuDNN computes. The shape's further conversations are
// empty.
struct AttentionRange {
  int64_t conversations = 0;
  PaddedShape shape;
};

// Divides conversations into ranges: one, or two if a quarter less has to be padded, or up to three
// as long as a range is padded to more than most_padded_tokens. Padding is least if the longest
// conversations come first.
std::vector<AttentionRange> attention_ranges(std::span<const int64_t> lengths);

// Indexes of a range's lists in CudnnInputs::lists; each begins at a multiple of 16 bytes.
struct ListPlaces {
  int64_t lengths, row_offsets, out_offsets, lse_offsets, end;
};
inline ListPlaces list_places(const PaddedShape& shape, int64_t begin) {
  const auto rounded_up = [](int64_t entries) { return (entries + 3) / 4 * 4; };
  const int64_t offsets = rounded_up(shape.conversations + 1);
  const int64_t first = begin + rounded_up(shape.conversations);
  return {begin, first, first + offsets, first + 2 * offsets, first + 3 * offsets};
}

// What cuDNN needs to compute a micro-batch's attention, range by range.
struct CudnnInputs {
  // Each conversation's length, and where its rows begin in the fused rows, in the output and in
  // the log-sum-exps, in elements.
  std::vector<int32_t> lists;
  std::vector<int64_t> shapes;  // [conversations, longest] of each range
};
// Divides a micro-batch into ranges; those without tokens are left out. `boundaries`: as
// HostBatch::cu_seqlens. Empty if the offsets do not fit into 32 bits.
CudnnInputs cudnn_inputs(std::span<const int32_t> boundaries, const HeadShape& heads);

}  // namespace fastsft
