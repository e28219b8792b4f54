#include "ops/attention/attention_tiles.h"

#include <algorithm>

#include "ops/cpu/elements.h"
#include "ops/cpu/softmax_rows.h"
#include "ops/cpu/tile_gemm.h"

namespace fastsft::cpu {
namespace {

constexpr int64_t kQueryRows = 48;  // a multiple of tile_gemm's block heights

// Loads a head's rows [first, first + count) as float32, row-major with padded columns.
template <typename T>
void load_rows(HeadView<const T> from, int64_t first, int64_t count, std::vector<float>& to) {
  const int64_t width = pad_columns(from.head_dim);
  to.assign(static_cast<size_t>(count * width), 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const T* row = from.data + (first + i) * from.stride;
    float* out = to.data() + i * width;
    for (int64_t d = 0; d < from.head_dim; ++d) out[d] = to_float(row[d]);
  }
}

// Loads a head transposed: [head_dim, padded length].
template <typename T>
void load_transposed(HeadView<const T> from, std::vector<float>& to) {
  const int64_t width = pad_columns(from.length);
  to.assign(static_cast<size_t>(from.head_dim * width), 0.0f);
  for (int64_t i = 0; i < from.length; ++i) {
    const T* row = from.data + i * from.stride;
    for (int64_t d = 0; d < from.head_dim; ++d)
      to[static_cast<size_t>(d * width + i)] = to_float(row[d]);
  }
}

template <typename T>
void store_rows(const float* rows, int64_t count, HeadView<T> to, int64_t first) {
  const int64_t width = pad_columns(to.head_dim);
  for (int64_t i = 0; i < count; ++i) {
    T* out = to.data + (first + i) * to.stride;
    for (int64_t d = 0; d < to.head_dim; ++d) store(&out[d], rows[i * width + d]);
  }
}

// The query rows [first, first + count) of a block, and the keys [begin, end) that at least one of
// these rows sees. `begin` is a multiple of kTileColumns.
struct Block {
  int64_t first, count, begin, end;

  int64_t num_keys() const { return end - begin; }
};

Block block_at(int64_t first, int64_t length, const ScoreRule& rule) {
  const int64_t count = std::min(kQueryRows, length - first);
  const int64_t begin = rule.first_visible(first) / kTileColumns * kTileColumns;
  return {first, count, begin, first + count};
}

// Computes scores[i, j] = row i of `rows` times column j of `transposed`, for the block's keys j.
void row_products(const Block& block, const std::vector<float>& rows,
                  const std::vector<float>& transposed, int64_t head_dim, int64_t length,
                  std::vector<float>& scores) {
  tile_gemm({.m = block.count,
             .n = pad_columns(block.num_keys()),
             .depth = head_dim,
             .a = rows.data(),
             .a_row = pad_columns(head_dim),
             .a_depth = 1,
             .b = transposed.data() + block.begin,
             .ldb = pad_columns(length),
             .c = scores.data() + block.begin,
             .ldc = pad_columns(length),
             .accumulate = false});
}

// Computes to[i] = sum over the block's keys j of weights[i, j] rows[j].
void weighted_rows(const Block& block, const std::vector<float>& weights, int64_t ld,
                   const std::vector<float>& rows, int64_t width, std::vector<float>& to) {
  to.resize(static_cast<size_t>(kQueryRows * width));
  tile_gemm({.m = block.count,
             .n = width,
             .depth = block.num_keys(),
             .a = weights.data() + block.begin,
             .a_row = ld,
             .a_depth = 1,
             .b = rows.data() + block.begin * width,
             .ldb = width,
             .c = to.data(),
             .ldc = width,
             .accumulate = false});
}

// Adds the sum over rows i of weights[i, j] rows[i] to to[j], for the block's keys j.
void add_transposed_product(const Block& block, const std::vector<float>& weights, int64_t ld,
                            const std::vector<float>& rows, int64_t width, std::vector<float>& to) {
  tile_gemm({.m = block.num_keys(),
             .n = width,
             .depth = block.count,
             .a = weights.data() + block.begin,
             .a_row = 1,
             .a_depth = ld,
             .b = rows.data(),
             .ldb = width,
             .c = to.data() + block.begin * width,
             .ldc = width,
             .accumulate = true});
}

// Sets the scores for the block's keys outside [begin, end) to 0; these keys are not visible.
void clear_hidden(const Block& block, int64_t begin, int64_t end, float* row) {
  std::fill(row + block.begin, row + begin, 0.0f);
  std::fill(row + end, row + block.end, 0.0f);
}

// Applies the softcap to a row of scores in place, and writes the derivatives to `slopes`. Returns
// the factor by which the row must still be multiplied.
float capped_scale(float* row, int64_t count, const ScoreRule& rule, float* slopes) {
  if (rule.softcap == 0) return rule.scale;
  cap_row(row, count, rule.scale, rule.softcap, slopes);
  return 1.0f;
}

}  // namespace

template <typename T>
void load_keys(HeadView<const T> keys, HeadView<const T> values, bool backward,
               AttentionScratch& scratch) {
  load_transposed(keys, scratch.keys_transposed);
  if (!backward) return load_rows(values, 0, values.length, scratch.values);
  load_rows(keys, 0, keys.length, scratch.keys);
  load_transposed(values, scratch.values_transposed);
  const auto size = static_cast<size_t>(keys.length * pad_columns(keys.head_dim));
  scratch.grad_keys.assign(size, 0.0f);
  scratch.grad_values.assign(size, 0.0f);
}

template <typename T>
void attention_head(HeadView<const T> queries, ScoreRule rule, HeadView<T> out, float* lse,
                    AttentionScratch& s) {
  const int64_t length = queries.length, dim = queries.head_dim;
  const int64_t ld = pad_columns(length), width = pad_columns(dim);
  s.scores.resize(static_cast<size_t>(kQueryRows * ld));
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const Block block = block_at(first, length, rule);
    load_rows(queries, first, block.count, s.queries);
    row_products(block, s.queries, s.keys_transposed, dim, length, s.scores);
    for (int64_t i = 0; i < block.count; ++i) {
      float* row = s.scores.data() + i * ld;
      const int64_t begin = rule.first_visible(first + i), end = first + i + 1;
      const float scale = capped_scale(row + begin, end - begin, rule, nullptr);
      lse[first + i] = softmax_row(row + begin, end - begin, scale);
      clear_hidden(block, begin, end, row);
    }
    weighted_rows(block, s.scores, ld, s.values, width, s.out_rows);
    store_rows(s.out_rows.data(), block.count, out, first);
  }
}

template <typename T>
void attention_head_backward(HeadView<const T> grad_out, HeadView<const T> queries,
                             HeadView<const T> out, const float* lse, ScoreRule rule,
                             HeadView<T> grad_queries, AttentionScratch& s) {
  const int64_t length = queries.length, dim = queries.head_dim;
  const int64_t ld = pad_columns(length), width = pad_columns(dim);
  s.scores.resize(static_cast<size_t>(kQueryRows * ld));
  s.grad_scores.resize(s.scores.size());
  if (rule.softcap > 0) s.slopes.resize(static_cast<size_t>(ld));
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const Block block = block_at(first, length, rule);
    load_rows(queries, first, block.count, s.queries);
    load_rows(grad_out, first, block.count, s.grad_rows);
    load_rows(out, first, block.count, s.out_rows);
    row_products(block, s.queries, s.keys_transposed, dim, length, s.scores);
    row_products(block, s.grad_rows, s.values_transposed, dim, length, s.grad_scores);
    for (int64_t i = 0; i < block.count; ++i) {
      const int64_t begin = rule.first_visible(first + i), end = first + i + 1;
      float* p = s.scores.data() + i * ld;
      float* grad = s.grad_scores.data() + i * ld;
      const float dot =
          dot_row(s.grad_rows.data() + i * width, s.out_rows.data() + i * width, width);
      const float scale = capped_scale(p + begin, end - begin, rule, s.slopes.data());
      probabilities_row(p + begin, end - begin, scale, lse[first + i]);
      softmax_backward_row(p + begin, grad + begin, end - begin, dot, rule.scale,
                           rule.softcap > 0 ? s.slopes.data() : nullptr);
      clear_hidden(block, begin, end, p);
      clear_hidden(block, begin, end, grad);
    }
    add_transposed_product(block, s.scores, ld, s.grad_rows, width, s.grad_values);
    add_transposed_product(block, s.grad_scores, ld, s.queries, width, s.grad_keys);
    weighted_rows(block, s.grad_scores, ld, s.keys, width, s.grad_queries);
    store_rows(s.grad_queries.data(), block.count, grad_queries, first);
  }
}

template <typename T>
void store_head(const std::vector<float>& rows, HeadView<T> to) {
  store_rows(rows.data(), to.length, to, 0);
}

#define FASTSFT_INSTANTIATE(T)                                                               \
  template void load_keys<T>(HeadView<const T>, HeadView<const T>, bool, AttentionScratch&); \
  template void attention_head<T>(HeadView<const T>, ScoreRule, HeadView<T>, float*,         \
                                  AttentionScratch&);                                        \
  template void attention_head_backward<T>(HeadView<const T>, HeadView<const T>,             \
                                           HeadView<const T>, const float*, ScoreRule,       \
                                           HeadView<T>, AttentionScratch&);                  \
  template void store_head<T>(const std::vector<float>&, HeadView<T>)
FASTSFT_INSTANTIATE(float);
FASTSFT_INSTANTIATE(bfloat16);
FASTSFT_INSTANTIATE(float16);
#undef FASTSFT_INSTANTIATE

}  // namespace fastsft::cpu
