#include "ops/swiglu/swiglu.h"

#include <torch/library.h>

#include "ops/cpu/convert.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/parallel.h"

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

template <bool kRemake, typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* gate_up, T* grad, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, gate_up += 2 * width, grad += 2 * width, grad_out += width) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float gate = to_float(gate_up[j]), up = to_float(gate_up[width + j]);
      const float g = to_float(grad_out[j]), s = sigmoid_approx(gate);
      store(&grad[j], g * up * s * (1.0f + gate * (1.0f - s)));
      store(&grad[width + j], g * gate * s);
      if constexpr (kRemake) store(&grad_out[j], gate * s * up);
    }
  }
}

// Rows of both directions on one thread.
FASTSFT_CLONES void swiglu_rows(const float* gate_up, float* out, int64_t rows, int64_t width) {
  forward(gate_up, out, rows, width);
}

FASTSFT_CLONES void swiglu_rows(const bfloat16* gate_up, bfloat16* out, int64_t rows,
                                int64_t width) {
  forward(gate_up, out, rows, width);
}

FASTSFT_CLONES void swiglu_rows(const float16* gate_up, float16* out, int64_t rows, int64_t width) {
  forward(gate_up, out, rows, width);
}

template <typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* gate_up, T* grad, int64_t rows, int64_t width,
                             bool remake) {
  if (remake)
    backward<true>(grad_out, gate_up, grad, rows, width);
  else
    backward<false>(grad_out, gate_up, grad, rows, width);
}

FASTSFT_CLONES void swiglu_backward_rows(float* grad_out, const float* gate_up, float* grad_gate_up,
                                         int64_t rows, int64_t width, bool remake) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, remake);
}

FASTSFT_CLONES void swiglu_backward_rows(bfloat16* grad_out, const bfloat16* gate_up,
                                         bfloat16* grad_gate_up, int64_t rows, int64_t width,
                                         bool remake) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, remake);
}

FASTSFT_CLONES void swiglu_backward_rows(float16* grad_out, const float16* gate_up,
                                         float16* grad_gate_up, int64_t rows, int64_t width,
                                         bool remake) {
  backward(grad_out, gate_up, grad_gate_up, rows, width, remake);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

template <typename T>
void run_swiglu_forward(const at::Tensor& gate_up, const at::Tensor& out) {
  const int64_t width = out.size(1);
  at::parallel_for(0, out.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
    cpu::swiglu_rows(gate_up.data_ptr<T>() + 2 * begin * width, out.data_ptr<T>() + begin * width,
                     end - begin, width);
  });
}

template <typename T>
void run_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                         const at::Tensor& grad_gate_up, bool remake) {
  const int64_t width = grad_out.size(1);
  at::parallel_for(0, grad_out.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
    const int64_t at = 2 * begin * width;
    cpu::swiglu_backward_rows(grad_out.data_ptr<T>() + begin * width, gate_up.data_ptr<T>() + at,
                              grad_gate_up.data_ptr<T>() + at, end - begin, width, remake);
  });
}

void swiglu_cpu(const at::Tensor& gate_up, const at::Tensor& out) {
  check_swiglu(gate_up, out);
  cpu::dispatch(out.scalar_type(), [&]<typename T>() { run_swiglu_forward<T>(gate_up, out); });
}

void swiglu_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate_up,
                         const at::Tensor& grad_gate_up, bool remake) {
  check_swiglu_backward(grad_out, gate_up, grad_gate_up, remake);
  cpu::dispatch(grad_out.scalar_type(), [&]<typename T>() {
    run_swiglu_backward<T>(grad_out, gate_up, grad_gate_up, remake);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("swiglu", &swiglu_cpu);
  m.impl("swiglu_backward", &swiglu_backward_cpu);
}

}  // namespace fastsft
