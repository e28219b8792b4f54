#include "ops/adamw.h"

#include <torch/library.h>

#include "ops/check.h"
#include "ops/clip_control.h"
#include "ops/dispatch.h"

namespace fastsft {

void adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
           const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& control, double lr, double beta1, double beta2, double eps,
           double weight_decay) {
  FASTSFT_DISPATCH(adamw, param, compute_copy, grad, exp_avg, exp_avg_sq, control, lr, beta1, beta2,
                   eps, weight_decay);
}

void check_adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                 const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& control, double lr, double beta1, double beta2, double eps,
                 double weight_decay) {
  constexpr const char* kOp = "adamw";
  const std::initializer_list<Arg> args = {
      {"param", param}, {"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}};
  check_tensors(kOp, args);
  for (const Arg& arg : args) check_shape(kOp, arg, {param.numel()});
  for (const Arg& arg : {Arg{"param", param}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}}) {
    check_dtype(kOp, arg, at::kFloat);
  }
  check_compute_dtype(kOp, {"grad", grad});
  check_tensors(kOp, {{"param", param}, {"control", control}});
  check_control(kOp, control);
  if (!compute_copy) return;
  check_tensors(kOp, {{"param", param}, {"compute_copy", *compute_copy}});
  check_dtype(kOp, {"compute_copy", *compute_copy}, at::kBFloat16);
  check_shape(kOp, {"compute_copy", *compute_copy}, {param.numel()});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "adamw(Tensor(a!) param, Tensor(b!)? compute_copy, Tensor grad, Tensor(c!) exp_avg, "
      "Tensor(d!) "
      "exp_avg_sq, Tensor control, float lr, float beta1, float beta2, float eps, float "
      "weight_decay) -> ()");
}

}  // namespace fastsft
