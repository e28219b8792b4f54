#include "model/masked_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "model/config.h"
#include "ops/attention/attention.h"

namespace fastsft {
namespace {

constexpr int64_t kScores = int64_t{1} << 24;  // scores at a time, over all heads

// A conversation of the batch: K key heads with G query heads each, L tokens, D elements per head.
class Conversation {
 public:
  Conversation(const AttentionHeads& heads, int64_t begin, int64_t length)
      : heads_(heads), begin_(begin), length_(length) {}

  int64_t key_heads() const { return heads_.num_key_value_heads; }
  int64_t group() const { return heads_.num_heads / key_heads(); }
  int64_t block() const { return std::max<int64_t>(1, kScores / (heads_.num_heads * length_)); }

  // Returns `count` heads of [tokens, columns] from head `first` on, as [count, L, D]; `all` heads
  // share the columns.
  at::Tensor rows(const at::Tensor& tensor, int64_t first, int64_t count, int64_t all) const {
    return tensor.narrow(0, begin_, length_)
        .view({length_, all, tensor.size(1) / all})
        .narrow(1, first, count)
        .transpose(0, 1);
  }
  at::Tensor query(const at::Tensor& qkv) const { return rows(qkv, 0, heads_.num_heads, all()); }
  at::Tensor key(const at::Tensor& qkv) const {
    return rows(qkv, heads_.num_heads, key_heads(), all());
  }
  at::Tensor value(const at::Tensor& qkv) const {
    return rows(qkv, heads_.num_heads + key_heads(), key_heads(), all());
  }
  at::Tensor context(const at::Tensor& out) const {
    return rows(out, 0, heads_.num_heads, heads_.num_heads);
  }
  at::Tensor lse(const at::Tensor& lse) const { return lse.narrow(1, begin_, length_); }

  // Converts queries [first, first + count) of [H, L, D] to float32 [K, G * count, D].
  at::Tensor grouped(const at::Tensor& per_head, int64_t first, int64_t count) const {
    return per_head.narrow(1, first, count)
        .to(at::kFloat)
        .reshape({key_heads(), group() * count, per_head.size(2)});
  }
  // Converts back to [H, count, D].
  at::Tensor ungrouped(const at::Tensor& grouped, int64_t count) const {
    return grouped.view({heads_.num_heads, count, grouped.size(2)});
  }

  // Returns a mask [count, seen] for the queries from `first` on; true for each of the first `seen`
  // keys that is hidden from the query.
  at::Tensor hidden(const at::Tensor& is_key, int64_t first, int64_t count, int64_t seen) const {
    const auto options = is_key.options().dtype(at::kLong);
    const at::Tensor distance =
        at::arange(first, first + count, options).unsqueeze(1).sub(at::arange(seen, options));
    at::Tensor hidden = distance.lt(0).logical_or_(is_key.narrow(0, begin_, seen).eq(0));
    if (heads_.window > 0) hidden.logical_or_(distance.ge(heads_.window));
    return hidden;
  }

  // Returns the scores [K, G * count, seen], with -inf for hidden keys.
  at::Tensor scores(const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& hidden) const {
    at::Tensor scores = at::bmm(query, key.transpose(1, 2)).mul_(heads_.scale);
    cap_values(scores, heads_.softcap);
    per_query(scores, hidden).masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    return scores;
  }
  // Returns d score / d (scale * q k^T); undefined without a soft limit. Call before
  // probabilities().
  at::Tensor slopes(const at::Tensor& scores, const at::Tensor& hidden) const {
    if (heads_.softcap == 0) return {};
    at::Tensor slopes = scores.div(heads_.softcap).square_().neg_().add_(1.0);
    per_query(slopes, hidden).masked_fill_(hidden, 0.0);
    return slopes;
  }
  // Computes exp(scores - lse) in place; 0 if a query sees no key. lse [H, count].
  at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse) const {
    const at::Tensor sum = lse.masked_fill(lse.isinf(), 0.0);
    return scores.sub_(sum.reshape({key_heads(), -1, 1})).exp_();
  }

 private:
  int64_t all() const { return heads_.num_heads + 2 * key_heads(); }
  at::Tensor per_query(const at::Tensor& scores, const at::Tensor& hidden) const {
    return scores.view({key_heads(), group(), hidden.size(0), hidden.size(1)});
  }

  const AttentionHeads& heads_;
  int64_t begin_, length_;
};

template <typename Work>
void for_each_conversation(const Batch& batch, const AttentionHeads& heads, const Work& work) {
  for (size_t i = 0; i + 1 < batch.boundaries.size(); ++i) {
    const int64_t begin = batch.boundaries[i], length = batch.boundaries[i + 1] - begin;
    if (length == 0) continue;
    work(Conversation(heads, begin, length), length);
  }
}

void forward(const Conversation& c, int64_t length, const at::Tensor& qkv, const at::Tensor& is_key,
             const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor key = c.key(qkv).to(at::kFloat), value = c.value(qkv).to(at::kFloat);
  for (int64_t first = 0; first < length; first += c.block()) {
    const int64_t count = std::min(c.block(), length - first), seen = first + count;
    const at::Tensor scores =
        c.scores(c.grouped(c.query(qkv), first, count), key.narrow(1, 0, seen),
                 c.hidden(is_key, first, count, seen));
    const at::Tensor sums = at::logsumexp(scores, {-1}).view({-1, count});
    const at::Tensor weights = c.probabilities(scores, sums);
    c.lse(lse).narrow(1, first, count).copy_(sums);
    c.context(out)
        .narrow(1, first, count)
        .copy_(c.ungrouped(at::bmm(weights, value.narrow(1, 0, seen)), count));
  }
}

struct Saved {
  const at::Tensor &grad_out, &qkv, &out, &lse, &is_key;
};

void backward(const Conversation& c, int64_t length, const Saved& saved, double scale,
              const at::Tensor& grad_qkv) {
  const at::Tensor key = c.key(saved.qkv).to(at::kFloat), value = c.value(saved.qkv).to(at::kFloat);
  const at::Tensor grad_key = at::zeros_like(key), grad_value = at::zeros_like(value);
  for (int64_t first = 0; first < length; first += c.block()) {
    const int64_t count = std::min(c.block(), length - first), seen = first + count;
    const at::Tensor query = c.grouped(c.query(saved.qkv), first, count);
    const at::Tensor grad = c.grouped(c.context(saved.grad_out), first, count);
    const at::Tensor made = c.grouped(c.context(saved.out), first, count);
    const at::Tensor hidden = c.hidden(saved.is_key, first, count, seen);
    const at::Tensor scores = c.scores(query, key.narrow(1, 0, seen), hidden);
    const at::Tensor slopes = c.slopes(scores, hidden);
    const at::Tensor weights = c.probabilities(scores, c.lse(saved.lse).narrow(1, first, count));
    grad_value.narrow(1, 0, seen).add_(at::bmm(weights.transpose(1, 2), grad));
    at::Tensor grad_scores = at::bmm(grad, value.narrow(1, 0, seen).transpose(1, 2));
    grad_scores.sub_(grad.mul(made).sum(-1, true)).mul_(weights).mul_(scale);
    if (slopes.defined()) grad_scores.mul_(slopes);
    grad_key.narrow(1, 0, seen).add_(at::bmm(grad_scores.transpose(1, 2), query));
    c.query(grad_qkv)
        .narrow(1, first, count)
        .copy_(c.ungrouped(at::bmm(grad_scores, key.narrow(1, 0, seen)), count));
  }
  c.key(grad_qkv).copy_(grad_key);
  c.value(grad_qkv).copy_(grad_value);
}

}  // namespace

void batch_attention(const at::Tensor& qkv, const Batch& batch, const AttentionHeads& heads,
                     const at::Tensor& out, const at::Tensor& lse) {
  if (!batch.has_masked_keys()) {
    return attention(qkv, batch.cu_seqlens, heads.num_heads, heads.num_key_value_heads, heads.scale,
                     heads.window, out, lse, batch.max_seqlen, heads.softcap, batch.cudnn_lists,
                     batch.cudnn_shapes);
  }
  for_each_conversation(batch, heads, [&](const Conversation& c, int64_t length) {
    forward(c, length, qkv, batch.is_key, out, lse);
  });
}

void batch_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse, const Batch& batch,
                              const AttentionHeads& heads, const at::Tensor& grad_qkv) {
  if (!batch.has_masked_keys()) {
    return attention_backward(grad_out, qkv, out, lse, batch.cu_seqlens, heads.num_heads,
                              heads.num_key_value_heads, heads.scale, heads.window, grad_qkv,
                              batch.max_seqlen, heads.softcap, batch.cudnn_lists,
                              batch.cudnn_shapes);
  }
  for_each_conversation(batch, heads, [&](const Conversation& c, int64_t length) {
    backward(c, length, {grad_out, qkv, out, lse, batch.is_key}, heads.scale, grad_qkv);
  });
}

}  // namespace fastsft
