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

void clip_control(const at::Tensor& control, double max_norm) {
  FASTSFT_DISPATCH(clip_control, control, max_norm);
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

void check_clip_control(const at::Tensor& control, double) {
  check_control("clip_control", control);
}

void check_control(const char* op, const at::Tensor& control) {
  check_tensors(op, {{"control", control}});
  check_dtype(op, {"control", control}, at::kDouble);
  check_shape(op, {"control", control}, {kControlSize});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("accumulate(Tensor(a!) total, Tensor x) -> ()");
  m.def("norm_squared(Tensor x, Tensor(a!) out) -> ()");
  m.def("clip_control(Tensor(a!) control, float max_norm) -> ()");
}

}  // namespace fastsft
