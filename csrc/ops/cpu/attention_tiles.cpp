#include "ops/cpu/attention_tiles.h"

#include <c10/util/BFloat16.h>

#include <algorithm>

#include "ops/cpu/convert.h"
#include "ops/cpu/softmax_rows.h"
#include "ops/cpu/tile_gemm.h"

namespace fastsft::cpu {
namespace {

constexpr int64_t kQueryRows = 48;  // a multiple of the block heights of tile_gemm

// rows [first, first + count) of a head as float32, row-major with padded columns.
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

// [head_dim, padded length]
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

// scores[i, j] = row first + i of `rows` times column j of `transposed`, j < columns.
void row_products(const std::vector<float>& rows, const std::vector<float>& transposed,
                  int64_t count, int64_t columns, int64_t head_dim, int64_t length,
                  std::vector<float>& scores) {
  tile_gemm({.m = count,
             .n = columns,
             .depth = head_dim,
             .a = rows.data(),
             .a_row = pad_columns(head_dim),
             .a_depth = 1,
             .b = transposed.data(),
             .ldb = pad_columns(length),
             .c = scores.data(),
             .ldc = pad_columns(length),
             .accumulate = false});
}

// to[count, head_dim] = weights[count, columns] rows[columns, head_dim]
void weighted_rows(const std::vector<float>& weights, int64_t ld, int64_t count, int64_t columns,
                   const std::vector<float>& rows, int64_t width, std::vector<float>& to) {
  to.resize(static_cast<size_t>(kQueryRows * width));
  tile_gemm({.m = count,
             .n = width,
             .depth = columns,
             .a = weights.data(),
             .a_row = ld,
             .a_depth = 1,
             .b = rows.data(),
             .ldb = width,
             .c = to.data(),
             .ldc = width,
             .accumulate = false});
}

// to[columns, head_dim] += weights[count, columns]^T rows[count, head_dim]
void add_transposed_product(const std::vector<float>& weights, int64_t ld, int64_t count,
                            int64_t columns, const std::vector<float>& rows, int64_t width,
                            std::vector<float>& to) {
  tile_gemm({.m = columns,
             .n = width,
             .depth = count,
             .a = weights.data(),
             .a_row = 1,
             .a_depth = ld,
             .b = rows.data(),
             .ldb = width,
             .c = to.data(),
             .ldc = width,
             .accumulate = true});
}

// Row i of a block sees `visible` = first + i + 1 keys; the rest of the row up to `columns` becomes
// 0.
void clear_future(float* row, int64_t visible, int64_t columns) {
  std::fill(row + visible, row + columns, 0.0f);
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
void attention_head(HeadView<const T> queries, float scale, HeadView<T> out, float* lse,
                    AttentionScratch& s) {
  const int64_t length = queries.length, dim = queries.head_dim;
  const int64_t ld = pad_columns(length), width = pad_columns(dim);
  s.scores.resize(static_cast<size_t>(kQueryRows * ld));
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const int64_t count = std::min(kQueryRows, length - first), seen = first + count;
    load_rows(queries, first, count, s.queries);
    row_products(s.queries, s.keys_transposed, count, pad_columns(seen), dim, length, s.scores);
    for (int64_t i = 0; i < count; ++i) {
      float* row = s.scores.data() + i * ld;
      lse[first + i] = softmax_row(row, first + i + 1, scale);
      clear_future(row, first + i + 1, seen);
    }
    weighted_rows(s.scores, ld, count, seen, s.values, width, s.out_rows);
    store_rows(s.out_rows.data(), count, out, first);
  }
}

template <typename T>
void attention_head_backward(HeadView<const T> grad_out, HeadView<const T> queries,
                             HeadView<const T> out, const float* lse, float scale,
                             HeadView<T> grad_queries, AttentionScratch& s) {
  const int64_t length = queries.length, dim = queries.head_dim;
  const int64_t ld = pad_columns(length), width = pad_columns(dim);
  s.scores.resize(static_cast<size_t>(kQueryRows * ld));
  s.grad_scores.resize(s.scores.size());
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const int64_t count = std::min(kQueryRows, length - first), seen = first + count;
    load_rows(queries, first, count, s.queries);
    load_rows(grad_out, first, count, s.grad_rows);
    load_rows(out, first, count, s.out_rows);
    row_products(s.queries, s.keys_transposed, count, pad_columns(seen), dim, length, s.scores);
    row_products(s.grad_rows, s.values_transposed, count, pad_columns(seen), dim, length,
                 s.grad_scores);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t visible = first + i + 1;
      float* p = s.scores.data() + i * ld;
      float* grad = s.grad_scores.data() + i * ld;
      const float dot =
          dot_row(s.grad_rows.data() + i * width, s.out_rows.data() + i * width, width);
      probabilities_row(p, visible, scale, lse[first + i]);
      softmax_backward_row(p, grad, visible, dot, scale);
      clear_future(p, visible, seen);
      clear_future(grad, visible, seen);
    }
    add_transposed_product(s.scores, ld, count, seen, s.grad_rows, width, s.grad_values);
    add_transposed_product(s.grad_scores, ld, count, seen, s.queries, width, s.grad_keys);
    weighted_rows(s.grad_scores, ld, count, seen, s.keys, width, s.grad_queries);
    store_rows(s.grad_queries.data(), count, grad_queries, first);
  }
}

template <typename T>
void store_head(const std::vector<float>& rows, HeadView<T> to) {
  store_rows(rows.data(), to.length, to, 0);
}

#define FASTSFT_INSTANTIATE(T)                                                                  \
  template void load_keys<T>(HeadView<const T>, HeadView<const T>, bool, AttentionScratch&);    \
  template void attention_head<T>(HeadView<const T>, float, HeadView<T>, float*,                \
                                  AttentionScratch&);                                           \
  template void attention_head_backward<T>(HeadView<const T>, HeadView<const T>,                \
                                           HeadView<const T>, const float*, float, HeadView<T>, \
                                           AttentionScratch&);                                  \
  template void store_head<T>(const std::vector<float>&, HeadView<T>)
FASTSFT_INSTANTIATE(float);
FASTSFT_INSTANTIATE(c10::BFloat16);
#undef FASTSFT_INSTANTIATE

}  // namespace fastsft::cpu
