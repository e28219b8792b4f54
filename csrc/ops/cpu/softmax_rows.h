#pragma once

#include <cstdint>

namespace fastsft::cpu {

// The loss of one row of logits (see ops/linear_cross_entropy/linear_cross_entropy.h), times
// `weight`. With `gradient`, the row is overwritten by d loss / d logits; otherwise its content is
// lost.
double cross_entropy_row(float* logits, int64_t vocab, int64_t target, float weight,
                         float smoothing, bool gradient);
// The same of softcap * tanh(logits / softcap); the gradient is that of the logits.
double capped_cross_entropy_row(float* logits, int64_t vocab, int64_t target, float weight,
                                float smoothing, float softcap, bool gradient);

// row = cap * tanh(scale * row / cap). `slopes` gets d row / d (scale * row), or is null.
void cap_row(float* row, int64_t count, float scale, float cap, float* slopes);

// Softmax of scale * row[0, count) in place; returns log(sum(exp(scale * row))).
float softmax_row(float* row, int64_t count, float scale);
// row = exp(scale * row - log_sum): the probabilities again.
void probabilities_row(float* row, int64_t count, float scale, float log_sum);
// grad_scores = p * (grad_p - dot) * scale, times `slopes` unless null, written over grad_p.
void softmax_backward_row(const float* p, float* grad_p, int64_t count, float dot, float scale,
                          const float* slopes);
float dot_row(const float* a, const float* b, int64_t count);

}  // namespace fastsft::cpu
