#pragma once

#include <cstdint>

namespace fastsft::cpu {

// Returns `weight` times the loss of one row of logits
// (ops/linear_cross_entropy/linear_cross_entropy.h). With `gradient`, overwrites the row with d
// loss / d logits; otherwise the row's content is undefined afterwards.
double cross_entropy_row(float* logits, int64_t vocab, int64_t target, float weight,
                         float smoothing, bool gradient);
// Does the same for softcap * tanh(logits / softcap). The gradient is with respect to the logits
// before the cap.
double capped_cross_entropy_row(float* logits, int64_t vocab, int64_t target, float weight,
                                float smoothing, float softcap, bool gradient);

// Sets row = cap * tanh(scale * row / cap). Writes d row / d (scale * row) to `slopes` unless it is
// null.
void cap_row(float* row, int64_t count, float scale, float cap, float* slopes);

// Replaces row by the softmax of scale * row[0, count); returns log(sum(exp(scale * row))).
float softmax_row(float* row, int64_t count, float scale);
// Recomputes the probabilities: row = exp(scale * row - log_sum).
void probabilities_row(float* row, int64_t count, float scale, float log_sum);
// Overwrites grad_p with p * (grad_p - dot) * scale, times `slopes` unless it is null.
void softmax_backward_row(const float* p, float* grad_p, int64_t count, float dot, float scale,
                          const float* slopes);
float dot_row(const float* a, const float* b, int64_t count);

}  // namespace fastsft::cpu
