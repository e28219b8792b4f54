#include "ops/sgd/sgd.h"

#include <torch/library.h>

#include "ops/gradient/gradient.h"
#include "ops/schema.h"

namespace fastsft {

void sgd(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
         const at::Tensor& grad, const at::Tensor& scalars, double lr, double weight_decay) {
  FASTSFT_DISPATCH(sgd, param, compute_copy, grad, scalars, lr, weight_decay);
}

void check_sgd(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& scalars, double, double) {
  check_tensors("sgd", {{"param", param}, {"grad", grad}, {"scalars", scalars}});
  check_shape("sgd", {"param", param}, {param.numel()});
  check_shape("sgd", {"grad", grad}, {param.numel()});
  check_state_dtype("sgd", {"grad", grad});
  check_step_scalars("sgd", scalars);
  check_master("sgd", param, compute_copy);
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "sgd(Tensor(a!) param, Tensor(b!)? compute_copy, Tensor grad, Tensor scalars, float lr, "
      "float weight_decay) -> ()");
}

}  // namespace fastsft
