#include "ops/attention/library_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace fastsft::cuda {
namespace {

// Views of the fused rows, each [tokens, heads, head_dim].
struct Heads {
  at::Tensor query, key, value;
};

Heads heads_of(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t queries = shape.num_heads, keys = shape.num_key_value_heads;
  const int64_t all = queries + 2 * keys;
  const at::Tensor heads = qkv.view({qkv.size(0), all, qkv.size(1) / all});
  return {.query = heads.narrow(1, 0, queries),
          .key = heads.narrow(1, queries, keys),
          .value = heads.narrow(1, queries + keys, keys)};
}

at::Tensor as_heads(const at::Tensor& rows, const AttentionShape& shape) {
  return rows.view({rows.size(0), shape.num_heads, rows.size(1) / shape.num_heads});
}

// Returns the longest conversation, at least 2. With one query token, flash uses a special layout
// for grouped heads that forbids empty conversations and orders lse differently.
int64_t longest(const AttentionShape& shape) { return std::max<int64_t>(shape.max_seqlen, 2); }

// Converts the window: flash does not count the query itself, our window does.
std::optional<int64_t> window_left(const AttentionShape& shape) {
  return shape.window == 0 ? std::nullopt : std::optional(shape.window - 1);
}
std::optional<int64_t> window_right(const AttentionShape& shape) {
  return shape.window == 0 ? std::nullopt : std::optional<int64_t>(0);
}

}  // namespace

void flash_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const AttentionShape& shape, const at::Tensor& out, const at::Tensor& lse) {
  const Heads heads = heads_of(qkv, shape);
  const auto result = at::_flash_attention_forward(
      heads.query, heads.key, heads.value, cu_seqlens, cu_seqlens, longest(shape), longest(shape),
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale,
      window_left(shape), window_right(shape));
  as_heads(out, shape).copy_(std::get<0>(result));
  lse.copy_(std::get<1>(result));
}

void flash_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const AttentionShape& shape,
                              const at::Tensor& grad_qkv) {
  const Heads heads = heads_of(qkv, shape), grads = heads_of(grad_qkv, shape);
  // Required arguments for dropout, which is off.
  const auto words = qkv.options().dtype(at::kUInt64);
  const at::Tensor seed = at::empty({2}, words), offset = at::empty({}, words);
  const auto result = at::_flash_attention_backward(
      as_heads(grad_out, shape), heads.query, heads.key, heads.value, as_heads(out, shape), lse,
      cu_seqlens, cu_seqlens, longest(shape), longest(shape), /*dropout_p=*/0.0,
      /*is_causal=*/true, seed, offset, shape.scale, window_left(shape), window_right(shape));
  grads.query.copy_(std::get<0>(result));
  grads.key.copy_(std::get<1>(result));
  grads.value.copy_(std::get<2>(result));
}

}  // namespace fastsft::cuda
