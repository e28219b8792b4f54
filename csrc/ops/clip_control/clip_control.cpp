#include "ops/clip_control/clip_control.h"

#include <torch/library.h>

#include "ops/check.h"
#include "ops/dispatch.h"

namespace fastsft {

void clip_control(const at::Tensor& control, double max_norm) {
  FASTSFT_DISPATCH(clip_control, control, max_norm);
}

void check_control(const char* op, const at::Tensor& control) {
  check_tensors(op, {{"control", control}});
  check_dtype(op, {"control", control}, at::kDouble);
  check_shape(op, {"control", control}, {kControlSize});
}

void check_clip_control(const at::Tensor& control, double) {
  check_control("clip_control", control);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def("clip_control(Tensor(a!) control, float max_norm) -> ()");
}

}  // namespace fastsft
