#include "ops/rope/rope.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& positions, int64_t num_heads, bool inverse) {
  FASTSFT_DISPATCH(rope, x, cos, sin, positions, num_heads, inverse);
}

void check_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                const at::Tensor& positions, int64_t num_heads, bool inverse) {
  constexpr const char* kOp = "rope";
  check_tensors(kOp, {{"x", x}, {"cos", cos}, {"sin", sin}, {"positions", positions}});
  check_compute_dtype(kOp, {"x", x});
  TORCH_CHECK_VALUE(x.dim() == 2 && cos.dim() == 2, kOp, ": x and cos must be matrices");
  check_dtype(kOp, {"cos", cos}, at::kFloat);
  check_dtype(kOp, {"sin", sin}, at::kFloat);
  check_dtype(kOp, {"positions", positions}, at::kInt);
  check_shape(kOp, {"sin", sin}, cos.sizes());
  check_shape(kOp, {"positions", positions}, {x.size(0)});
  TORCH_CHECK_VALUE(cos.is_contiguous() && sin.is_contiguous(), kOp, ": tables must be contiguous");
  TORCH_CHECK_VALUE(num_heads >= 0 && num_heads * 2 * cos.size(1) <= x.size(1), kOp, ": ",
                    num_heads, " heads of ", 2 * cos.size(1), " do not fit a row of ", x.size(1));
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "rope(Tensor(a!) x, Tensor cos, Tensor sin, Tensor positions, int num_heads, bool inverse) "
      "-> "
      "()");
}

}  // namespace fastsft
