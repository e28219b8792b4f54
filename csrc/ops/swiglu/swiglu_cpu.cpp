#include "ops/swiglu/swiglu.h"

#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/swiglu/swiglu_rows.h"

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
                         const at::Tensor& grad_gate_up) {
  const int64_t width = grad_out.size(1);
  at::parallel_for(0, grad_out.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
    const int64_t at = 2 * begin * width;
    cpu::swiglu_backward_rows(grad_out.data_ptr<T>() + begin * width, gate_up.data_ptr<T>() + at,
                              grad_gate_up.data_ptr<T>() + at, end - begin, width);
  });
}

void swiglu_cpu(const at::Tensor& gate_up, const at::Tensor& out) {
  check_swiglu(gate_up, out);
  (out.scalar_type() == at::kFloat ? run_swiglu_forward<float>
                                   : run_swiglu_forward<c10::BFloat16>)(gate_up, out);
}

void swiglu_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate_up,
                         const at::Tensor& grad_gate_up) {
  check_swiglu_backward(grad_out, gate_up, grad_gate_up);
  const bool wide = grad_out.scalar_type() == at::kFloat;
  (wide ? run_swiglu_backward<float> : run_swiglu_backward<c10::BFloat16>)(grad_out, gate_up,
                                                                           grad_gate_up);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("swiglu", &swiglu_cpu);
  m.impl("swiglu_backward", &swiglu_backward_cpu);
}

}  // namespace fastsft
