#pragma once

#include <cstdint>
#include <vector>

namespace fastsft::cpu {

// The heads of one conversation in a packed batch. Token t's row begins at data + t * stride.
template <typename T>
struct HeadView {
  T* data;
  int64_t stride;
  int64_t length;
  int64_t head_dim;
};

// The rule for scores: multiply by `scale`, then apply `softcap` (0: none). Token i sees the last
// `window` tokens up to itself (0: unlimited).
struct ScoreRule {
  float scale;
  int64_t window;
  float softcap;

  int64_t first_visible(int64_t i) const { return window > 0 && i >= window ? i - window + 1 : 0; }
};

// Scratch memory of one thread, reused between calls.
struct AttentionScratch {
  std::vector<float> keys, keys_transposed, values, values_transposed;
  std::vector<float> queries, grad_rows, out_rows;
  std::vector<float> scores, slopes, grad_scores, grad_queries, grad_keys, grad_values;
};

// Computes causal attention for one query head in one conversation (formulas:
// ops/attention/attention.h). `load_keys` prepares a key/value head once for all its query heads.
template <typename T>
void load_keys(HeadView<const T> keys, HeadView<const T> values, bool backward,
               AttentionScratch& scratch);
template <typename T>
void attention_head(HeadView<const T> queries, ScoreRule rule, HeadView<T> out, float* lse,
                    AttentionScratch& scratch);
// Adds to scratch.grad_keys and scratch.grad_values [length, padded head_dim]; overwrites
// grad_queries.
template <typename T>
void attention_head_backward(HeadView<const T> grad_out, HeadView<const T> queries,
                             HeadView<const T> out, const float* lse, ScoreRule rule,
                             HeadView<T> grad_queries, AttentionScratch& scratch);
template <typename T>
void store_head(const std::vector<float>& rows, HeadView<T> to);

}  // namespace fastsft::cpu
