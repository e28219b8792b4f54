#include "ops/adamw/adamw.h"

#include <torch/library.h>

#include "ops/gradient/gradient.h"
#include "ops/schema.h"

namespace fastsft {
namespace {

constexpr const char* kOp = "adamw";

}  // namespace

void adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
           const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
           double weight_decay, int64_t seed, int64_t first_element) {
  FASTSFT_DISPATCH(adamw, param, compute_copy, grad, exp_avg, exp_avg_sq, scalars, lr, beta1, beta2,
                   eps, weight_decay, seed, first_element);
}

void check_adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                 const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                 double weight_decay, int64_t seed, int64_t first_element) {
  const std::initializer_list<Arg> args = {
      {"param", param}, {"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}};
  check_tensors(kOp, args);
  for (const Arg& arg : args) check_shape(kOp, arg, {param.numel()});
  check_state_dtype(kOp, {"grad", grad});
  check_state_dtype(kOp, {"exp_avg", exp_avg});
  check_dtype(kOp, {"exp_avg_sq", exp_avg_sq}, exp_avg.scalar_type());
  check_tensors(kOp, {{"param", param}, {"scalars", scalars}});
  check_step_scalars(kOp, scalars);
  check_master(kOp, param, compute_copy);
  TORCH_CHECK_VALUE(first_element >= 0, kOp, ": first_element is ", first_element,
                    ", expected 0 or more");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "adamw(Tensor(a!) param, Tensor(b!)? compute_copy, Tensor grad, Tensor(c!) exp_avg, "
      "Tensor(d!) "
      "exp_avg_sq, Tensor scalars, float lr, float beta1, float beta2, float eps, float "
      "weight_decay, int seed=0, int first_element=0) -> ()");
}

}  // namespace fastsft
