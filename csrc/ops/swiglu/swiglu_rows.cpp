#include "ops/swiglu/swiglu_rows.h"

#include "ops/cpu/convert.h"

namespace fastsft::cpu {
namespace {

template <typename T>
FASTSFT_INLINE void forward(const T* gate_up, T* out, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, gate_up += 2 * width, out += width) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float gate = to_float(gate_up[j]);
      store(&out[j], gate * sigmoid_approx(gate) * to_float(gate_up[width + j]));
    }
  }
}

template <typename T>
FASTSFT_INLINE void backward(const T* grad_out, const T* gate_up, T* grad, int64_t rows,
                             int64_t width) {
  for (int64_t i = 0; i < rows; ++i, gate_up += 2 * width, grad += 2 * width, grad_out += width) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float gate = to_float(gate_up[j]), up = to_float(gate_up[width + j]);
      const float g = to_float(grad_out[j]), s = sigmoid_approx(gate);
      store(&grad[j], g * up * s * (1.0f + gate * (1.0f - s)));
      store(&grad[width + j], g * gate * s);
    }
  }
}

}  // namespace

FASTSFT_CLONES void swiglu_rows(const float* gate_up, float* out, int64_t rows, int64_t width) {
  forward(gate_up, out, rows, width);
}

FASTSFT_CLONES void swiglu_rows(const bfloat16* gate_up, bfloat16* out, int64_t rows,
                                int64_t width) {
  forward(gate_up, out, rows, width);
}

FASTSFT_CLONES void swiglu_backward_rows(const float* grad_out, const float* gate_up,
                                         float* grad_gate_up, int64_t rows, int64_t width) {
  backward(grad_out, gate_up, grad_gate_up, rows, width);
}

FASTSFT_CLONES void swiglu_backward_rows(const bfloat16* grad_out, const bfloat16* gate_up,
                                         bfloat16* grad_gate_up, int64_t rows, int64_t width) {
  backward(grad_out, gate_up, grad_gate_up, rows, width);
}

}  // namespace fastsft::cpu
