#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// logits = softcap * tanh(logits / softcap) in place; 0: nothing.
inline void cap_logits(const at::Tensor& logits, double softcap) {
  if (softcap > 0) logits.div_(softcap).tanh_().mul_(softcap);
}

}  // namespace fastsft
