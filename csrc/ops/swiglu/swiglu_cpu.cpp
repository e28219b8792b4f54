#include "ops/swiglu/swiglu.h"

#include <torch/library.h>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/fp8/fp8.h"

namespace fastsft::cpu {
namespace {

// An activation act(x) = x * sigmoid(argument(x)); slope is the derivative of argument.
struct Silu {
  static FASTSFT_INLINE float argument(float x) { return x; }
  static FASTSFT_INLINE float slope(float) { return 1.0f; }
};

// GELU's tanh form, as 0.5 (1 + tanh(u)) = sigmoid(2u). The sigmoid avoids cancellation if tanh is
// near -1.
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = kLinear * 0.044715f;
  static FASTSFT_INLINE float argument(float x) { return x * (kLinear + kCubic * x * x); }
  static FASTSFT_INLINE float slope(float x) { return kLinear + 3.0f * kCubic * x * x; }
};

template <typename Gate, typename T>
FASTSFT_INLINE void forward(const T* gate_up, T* out, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, gate_up += 2 * width, out += width) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float gate = to_float(gate_up[j]);
      store(&out[j], gate * sigmoid_approx(Gate::argument(gate)) * to_float(gate_up[width + j]));
    }
  }
}

template <typename T>
FASTSFT_INLINE void forward(const T* gate_up, T* out, int64_t rows, int64_t width, bool gelu) {
  if (gelu)
    forward<GeluTanh>(gate_up, out, rows, width);
  else
    forward<Silu>(gate_up, out, rows, width);
}

template <typename Gate, bool kRemake, typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* gate_up, T* grad, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, gate_up += 2 * width, grad += 2 * width, grad_out += width) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float gate = to_float(gate_up[j]), up = to_float(gate_up[width + j]);
      const float g = to_float(grad_out[j]), s = sigmoid_approx(Gate::argument(gate));
      store(&grad[j], g * up * s * (1.0f + gate * (1.0f - s) * Gate::slope(gate)));
      store(&grad[width + j], g * gate * s);
      if constexpr (kRemake) store(&grad_out[j], gate * s * up);
    }
  }
}

template <typename Gate, typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* gate_up, T* grad, int64_t rows, int64_t width,
                             bool recompute) {
  if (recompute)
    backward<Gate, true>(grad_out, gate_up, grad, rows, width);
  else
    backward<Gate, false>(grad_out, gate_up, grad, rows, width);
}

template <typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* gate_up, T* grad, int64_t rows, int64_t width,
                             bool recompute, bool gelu) {
  if (gelu)
    backward<GeluTanh>(grad_out, gate_up, grad, rows, width, recompute);
  else
    backward<Silu>(grad_out, gate_up, grad, rows, width, recompute);
}

// Runs forward and backward for rows on one thread.
FASTSFT_CLONES void swiglu_rows(const float* gate_up, float* out, int64_t rows, int64_t width,
                                bool gelu) {
  forward(gate_up, out, rows, width, gelu);
}

FASTSFT_CLONES void swiglu_rows(const bfloat16* gate_up, bfloat16* out, int64_t rows, int64_t width,
                                bool gelu) {
  forward(gate_up, out, rows, width, gelu);
}

FASTSFT_CLONES void swiglu_rows(const float16* gate_up, float16* out, int64_t rows, int64_t width,
                                bool gelu) {
  forward(gate_up, out, rows, width, gelu);
}

FASTSFT_CLONES void swiglu_backward_rows(float* grad_out, const float* gate_up, float* grad_gate_up,
                                         int64_t rows, int64_t width, bool recompute, bool gelu) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, recompute, gelu);
}

FASTSFT_CLONES void swiglu_backward_rows(bfloat16* grad_out, const bfloat16* gate_up,
                                         bfloat16* grad_gate_up, int64_t rows, int64_t width,
                                         bool recompute, bool gelu) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, recompute, gelu);
}

FASTSFT_CLONES void swiglu_backward_rows(float16* grad_out, const float16* gate_up,
                                         float16* grad_gate_up, int64_t rows, int64_t width,
                                         bool recompute, bool gelu) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, recompute, gelu);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void swiglu_cpu(const at::Tensor& gate_up, const at::Tensor& out, bool gelu) {
  check_swiglu(gate_up, out, gelu);
  const int64_t width = out.size(1);
  cpu::dispatch(out.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, out.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      cpu::swiglu_rows(gate_up.data_ptr<T>() + 2 * begin * width, out.data_ptr<T>() + begin * width,
                       end - begin, width, gelu);
    });
  });
}

void swiglu_fp8_cpu(const at::Tensor& gate_up, const at::Tensor& out, const at::Tensor& values,
                    const at::Tensor& scales, bool power_of_2, bool keep, bool gelu) {
  check_swiglu_fp8(gate_up, out, values, scales, power_of_2, keep, gelu);
  swiglu(gate_up, out, gelu);
  fp8_quantize(out, /*rowwise=*/true, power_of_2, values, scales);
}

void swiglu_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate_up,
                         const at::Tensor& grad_gate_up, bool recompute, bool gelu) {
  check_swiglu_backward(grad_out, gate_up, grad_gate_up, recompute, gelu);
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  cpu::dispatch(grad_out.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, rows, cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      const int64_t at = 2 * begin * width;
      cpu::swiglu_backward_rows(grad_out.data_ptr<T>() + begin * width, gate_up.data_ptr<T>() + at,
                                grad_gate_up.data_ptr<T>() + at, end - begin, width, recompute,
                                gelu);
    });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("swiglu", &swiglu_cpu);
  m.impl("swiglu_fp8", &swiglu_fp8_cpu);
  m.impl("swiglu_backward", &swiglu_backward_cpu);
}

}  // namespace fastsft
