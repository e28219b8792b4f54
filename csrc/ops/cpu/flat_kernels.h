#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace fastsft::cpu {

double sum_of_squares(const float* x, int64_t count);

// Constants in one AdamW step; the formula is in ops/adamw/adamw.h.
struct AdamwConstants {
  float decay;       // 1 - lr * weight_decay
  float beta1_rest;  // 1 - beta1
  float beta2;
  float beta2_rest;  // 1 - beta2
  float bias2_sqrt;  // sqrt(1 - beta2^t)
  float step_size;   // lr / (1 - beta1^t)
  float eps;
  float grad_scale;
};

void adamw_range(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
                 const AdamwConstants& constants);
void widen_range(const c10::BFloat16* from, float* to, int64_t count);
void widen_range(const c10::Half* from, float* to, int64_t count);
void narrow_range(const float* from, c10::BFloat16* to, int64_t count);  // to nearest even
void narrow_range(const float* from, c10::Half* to, int64_t count);

}  // namespace fastsft::cpu
