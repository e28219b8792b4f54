#include "ops/accumulate/accumulate.h"

#include <torch/library.h>

#include "ops/check.h"
#include "ops/dispatch.h"

namespace fastsft {

void accumulate(const at::Tensor& total, const at::Tensor& x) {
  FASTSFT_DISPATCH(accumulate, total, x);
}

void check_accumulate(const at::Tensor& total, const at::Tensor& x) {
  check_tensors("accumulate", {{"total", total}, {"x", x}});
  check_state_dtype("accumulate", {"total", total});
  check_dtype("accumulate", {"x", x}, at::kFloat);
  check_shape("accumulate", {"total", total}, {total.numel()});
  check_shape("accumulate", {"x", x}, {total.numel()});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) { m.def("accumulate(Tensor(a!) total, Tensor x) -> ()"); }

}  // namespace fastsft
