#include "ops/attention/attention.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/attention/attention_tiles.h"
#include "ops/cpu/elements.h"

namespace fastsft {
namespace {

using cpu::AttentionScratch;
using cpu::HeadView;

// Positions of the heads in a qkv row.
struct Heads {
  int64_t num_heads, num_key_value_heads, head_dim;

  int64_t group() const { return num_heads / num_key_value_heads; }
  int64_t key(int64_t kv) const { return num_heads + kv; }
  int64_t value(int64_t kv) const { return num_heads + num_key_value_heads + kv; }
};

struct Conversation {
  int64_t begin, length;
};

template <typename T>
HeadView<T> view(const at::Tensor& tensor, const Conversation& c, int64_t head, int64_t head_dim) {
  using Stored = std::remove_const_t<T>;
  return {tensor.data_ptr<Stored>() + c.begin * tensor.stride(0) + head * head_dim,
          tensor.stride(0), c.length, head_dim};
}

void check_boundaries(const at::Tensor& cu_seqlens, int64_t tokens, int64_t max_seqlen) {
  const int32_t* at = cu_seqlens.data_ptr<int32_t>();
  const int64_t last = cu_seqlens.size(0) - 1;
  bool ordered = at[0] == 0 && at[last] == tokens;
  int64_t longest = 0;
  for (int64_t i = 0; i < last; ++i) {
    ordered = ordered && at[i] <= at[i + 1];
    longest = std::max<int64_t>(longest, at[i + 1] - at[i]);
  }
  TORCH_CHECK_VALUE(ordered, "attention: cu_seqlens must go from 0 to ", tokens,
                    " without decreasing, got ", at[0], " to ", at[last]);
  TORCH_CHECK_VALUE(max_seqlen == 0 || longest <= max_seqlen, "attention: a conversation has ",
                    longest, " tokens, max_seqlen is ", max_seqlen);
}

// Calls work(conversation, key/value head, scratch) for every pair, in parallel. The head is the
// outer index, so each thread gets conversations of all lengths.
template <typename Work>
void for_each_key_head(const at::Tensor& cu_seqlens, const Heads& heads, const Work& work) {
  const int32_t* at = cu_seqlens.data_ptr<int32_t>();
  const int64_t conversations = cu_seqlens.size(0) - 1;
  const int64_t tasks = conversations * heads.num_key_value_heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    thread_local AttentionScratch scratch;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t c = task % conversations;
      const Conversation conversation{at[c], at[c + 1] - at[c]};
      if (conversation.length > 0) work(conversation, task / conversations, scratch);
    }
  });
}

template <typename T>
void forward(const at::Tensor& qkv, const at::Tensor& cu_seqlens, const Heads& heads,
             cpu::ScoreRule rule, const at::Tensor& out, const at::Tensor& lse) {
  const int64_t dim = heads.head_dim, tokens = qkv.size(0);
  for_each_key_head(cu_seqlens, heads, [&](Conversation c, int64_t kv, AttentionScratch& scratch) {
    cpu::load_keys<T>(view<const T>(qkv, c, heads.key(kv), dim),
                      view<const T>(qkv, c, heads.value(kv), dim), false, scratch);
    for (int64_t head = kv * heads.group(); head < (kv + 1) * heads.group(); ++head) {
      cpu::attention_head<T>(view<const T>(qkv, c, head, dim), rule, view<T>(out, c, head, dim),
                             lse.data_ptr<float>() + head * tokens + c.begin, scratch);
    }
  });
}

template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
              const at::Tensor& lse, const at::Tensor& cu_seqlens, const Heads& heads,
              cpu::ScoreRule rule, const at::Tensor& grad_qkv) {
  const int64_t dim = heads.head_dim, tokens = qkv.size(0);
  for_each_key_head(cu_seqlens, heads, [&](Conversation c, int64_t kv, AttentionScratch& scratch) {
    cpu::load_keys<T>(view<const T>(qkv, c, heads.key(kv), dim),
                      view<const T>(qkv, c, heads.value(kv), dim), true, scratch);
    for (int64_t head = kv * heads.group(); head < (kv + 1) * heads.group(); ++head) {
      cpu::attention_head_backward<T>(
          view<const T>(grad_out, c, head, dim), view<const T>(qkv, c, head, dim),
          view<const T>(out, c, head, dim), lse.data_ptr<float>() + head * tokens + c.begin, rule,
          view<T>(grad_qkv, c, head, dim), scratch);
    }
    cpu::store_head<T>(scratch.grad_keys, view<T>(grad_qkv, c, heads.key(kv), dim));
    cpu::store_head<T>(scratch.grad_values, view<T>(grad_qkv, c, heads.value(kv), dim));
  });
}

Heads heads_of(const at::Tensor& qkv, int64_t num_heads, int64_t num_key_value_heads) {
  return {num_heads, num_key_value_heads, qkv.size(1) / (num_heads + 2 * num_key_value_heads)};
}

cpu::ScoreRule rule_of(double scale, int64_t window, double softcap) {
  return {static_cast<float>(scale), window, static_cast<float>(softcap)};
}

void attention_cpu(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
                   int64_t num_key_value_heads, double scale, int64_t window, const at::Tensor& out,
                   const at::Tensor& lse, int64_t max_seqlen, double softcap,
                   const std::optional<at::Tensor>& cudnn_lists, at::IntArrayRef cudnn_shapes) {
  check_attention(qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window, out, lse,
                  max_seqlen, softcap, {cudnn_lists, cudnn_shapes});
  check_boundaries(cu_seqlens, qkv.size(0), max_seqlen);
  cpu::dispatch(qkv.scalar_type(), [&]<typename T>() {
    forward<T>(qkv, cu_seqlens, heads_of(qkv, num_heads, num_key_value_heads),
               rule_of(scale, window, softcap), out, lse);
  });
}

void attention_backward_cpu(const at::Tensor& grad_out, const at::Tensor& qkv,
                            const at::Tensor& out, const at::Tensor& lse,
                            const at::Tensor& cu_seqlens, int64_t num_heads,
                            int64_t num_key_value_heads, double scale, int64_t window,
                            const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap,
                            const std::optional<at::Tensor>& cudnn_lists,
                            at::IntArrayRef cudnn_shapes) {
  check_attention_backward(grad_out, qkv, out, lse, cu_seqlens, num_heads, num_key_value_heads,
                           scale, window, grad_qkv, max_seqlen, softcap,
                           {cudnn_lists, cudnn_shapes});
  check_boundaries(cu_seqlens, qkv.size(0), max_seqlen);
  cpu::dispatch(qkv.scalar_type(), [&]<typename T>() {
    backward<T>(grad_out, qkv, out, lse, cu_seqlens, heads_of(qkv, num_heads, num_key_value_heads),
                rule_of(scale, window, softcap), grad_qkv);
  });
}

int64_t prepare_attention_cpu(const at::Tensor& like, int64_t num_heads,
                              int64_t num_key_value_heads, int64_t head_dim, double /*scale*/,
                              at::IntArrayRef /*windows*/, at::IntArrayRef cudnn_shapes) {
  check_prepare_attention(like, num_heads, num_key_value_heads, head_dim, cudnn_shapes);
  return 0;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("attention", &attention_cpu);
  m.impl("attention_backward", &attention_backward_cpu);
  m.impl("prepare_attention", &prepare_attention_cpu);
}

}  // namespace fastsft
