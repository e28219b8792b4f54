#pragma once

#include <ATen/core/Tensor.h>

#include "ops/clip_control/control_slots.h"

namespace fastsft {

// On the control block of ops/clip_control/control_slots.h, with norm = sqrt(norm_squared), writes
//   grad_scale = min(1, float32(max_norm / (norm + 1e-6)))   (torch.nn.utils.clip_grad_norm_)
//                1 when max_norm <= 0;  NaN when loss or norm is not finite
//   step       = step + 1 unless grad_scale is NaN
void clip_control(const at::Tensor& control, double max_norm);

void check_control(const char* op, const at::Tensor& control);
void check_clip_control(const at::Tensor& control, double max_norm);

}  // namespace fastsft
