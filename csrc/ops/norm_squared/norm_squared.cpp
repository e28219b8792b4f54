#include "ops/norm_squared/norm_squared.h"

#include <torch/library.h>

#include "ops/check.h"
#include "ops/dispatch.h"

namespace fastsft {

void norm_squared(const at::Tensor& x, const at::Tensor& out) {
  FASTSFT_DISPATCH(norm_squared, x, out);
}

void check_norm_squared(const at::Tensor& x, const at::Tensor& out) {
  check_tensors("norm_squared", {{"x", x}, {"out", out}});
  check_state_dtype("norm_squared", {"x", x});
  check_dtype("norm_squared", {"out", out}, at::kDouble);
  check_shape("norm_squared", {"x", x}, {x.numel()});
  check_shape("norm_squared", {"out", out}, {1});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) { m.def("norm_squared(Tensor x, Tensor(a!) out) -> ()"); }

}  // namespace fastsft
