#include "ops/gradient/gradient.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void accumulate(const at::Tensor& total, const at::Tensor& x) {
  FASTSFT_DISPATCH(accumulate, total, x);
}

void norm_squared(const at::Tensor& x, const at::Tensor& out) {
  FASTSFT_DISPATCH(norm_squared, x, out);
}

void compute_grad_scale(const at::Tensor& scalars, double max_norm) {
  FASTSFT_DISPATCH(compute_grad_scale, scalars, max_norm);
}

void check_accumulate(const at::Tensor& total, const at::Tensor& x) {
  check_tensors("accumulate", {{"total", total}, {"x", x}});
  check_state_dtype("accumulate", {"total", total});
  check_dtype("accumulate", {"x", x}, at::kFloat);
  check_shape("accumulate", {"total", total}, {total.numel()});
  check_shape("accumulate", {"x", x}, {total.numel()});
}

void check_norm_squared(const at::Tensor& x, const at::Tensor& out) {
  check_tensors("norm_squared", {{"x", x}, {"out", out}});
  check_state_dtype("norm_squared", {"x", x});
  check_dtype("norm_squared", {"out", out}, at::kDouble);
  check_shape("norm_squared", {"x", x}, {x.numel()});
  check_shape("norm_squared", {"out", out}, {1});
}

void check_compute_grad_scale(const at::Tensor& scalars, double) {
  check_step_scalars("compute_grad_scale", scalars);
}

void check_step_scalars(const char* op, const at::Tensor& scalars) {
  check_tensors(op, {{"scalars", scalars}});
  check_dtype(op, {"scalars", scalars}, at::kDouble);
  check_shape(op, {"scalars", scalars}, {kNumStepScalars});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("accumulate(Tensor(a!) total, Tensor x) -> ()");
  m.def("norm_squared(Tensor x, Tensor(a!) out) -> ()");
  m.def("compute_grad_scale(Tensor(a!) scalars, float max_norm) -> ()");
}

}  // namespace fastsft
