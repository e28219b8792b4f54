#include "ops/adamw8bit/adamw8bit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <limits>

#include "ops/dynamic_levels.h"
#include "ops/gradient/gradient.h"
#include "ops/schema.h"

namespace fastsft {
namespace {

at::Tensor bounds_of(const at::Tensor& levels) {
  const at::Tensor none = at::full({1}, std::numeric_limits<float>::infinity(), levels.options());
  return at::cat({(levels.slice(0, 0, -1) + levels.slice(0, 1)) / 2, none});
}

void check_state(const char* op, const at::Tensor& grad, const at::Tensor& state1,
                 const at::Tensor& state2, const at::Tensor& absmax1, const at::Tensor& absmax2,
                 const at::Tensor& levels, const at::Tensor& scalars, int64_t blocks) {
  check_tensors(op, {{"grad", grad},
                     {"state1", state1},
                     {"state2", state2},
                     {"absmax1", absmax1},
                     {"absmax2", absmax2},
                     {"levels", levels},
                     {"scalars", scalars}});
  check_step_scalars(op, scalars);
  check_state_dtype(op, {"grad", grad});
  check_shape(op, {"grad", grad}, {grad.numel()});
  for (const Arg& arg : {Arg{"state1", state1}, Arg{"state2", state2}}) {
    check_dtype(op, arg, at::kByte);
    check_shape(op, arg, {grad.numel()});
  }
  for (const Arg& arg : {Arg{"absmax1", absmax1}, Arg{"absmax2", absmax2}}) {
    check_dtype(op, arg, at::kFloat);
    check_shape(op, arg, {blocks});
  }
  check_dtype(op, {"levels", levels}, at::kFloat);
  check_shape(op, {"levels", levels}, {4, kQuantLevels});
}

void check_pair(const char* op, const char* name, const at::Tensor& grad, const at::Tensor& pair) {
  check_tensors(op, {{"grad", grad}, {name, pair}});
  check_dtype(op, {name, pair}, at::kFloat);
  check_shape(op, {name, pair}, {2});
}

}  // namespace

at::Tensor adamw8bit_levels(at::Device device) {
  const at::Tensor first = dynamic_levels(true), second = dynamic_levels(false);
  return at::stack({first, bounds_of(first), second, bounds_of(second)}).to(device);
}

void adamw8bit(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
               const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
               const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t first, const std::optional<at::Tensor>& first_edge,
               const std::optional<at::Tensor>& last_edge) {
  FASTSFT_DISPATCH(adamw8bit, param, compute_copy, grad, state1, state2, absmax1, absmax2, levels,
                   scalars, lr, beta1, beta2, eps, weight_decay, first, first_edge, last_edge);
}

void adamw8bit_maxima(const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                      const at::Tensor& absmax1, const at::Tensor& absmax2,
                      const at::Tensor& levels, const at::Tensor& scalars, double beta1,
                      double beta2, const at::Tensor& maxima) {
  FASTSFT_DISPATCH(adamw8bit_maxima, grad, state1, state2, absmax1, absmax2, levels, scalars, beta1,
                   beta2, maxima);
}

void check_adamw8bit(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                     const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                     const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
                     const at::Tensor& scalars, double, double, double, double, double,
                     int64_t first, const std::optional<at::Tensor>& first_edge,
                     const std::optional<at::Tensor>& last_edge) {
  constexpr const char* kOp = "adamw8bit";
  TORCH_CHECK_VALUE(first >= 0, kOp, ": first is ", first, ", expected 0 or more");
  const int64_t end = first + grad.numel();
  const int64_t blocks = grad.numel() == 0 ? 0 : (end - 1) / kQuantBlock - first / kQuantBlock + 1;
  check_state(kOp, grad, state1, state2, absmax1, absmax2, levels, scalars, blocks);
  check_tensors(kOp, {{"grad", grad}, {"param", param}});
  check_shape(kOp, {"param", param}, {grad.numel()});
  check_master(kOp, param, compute_copy);
  if (first_edge) check_pair(kOp, "first_edge", grad, *first_edge);
  if (last_edge) check_pair(kOp, "last_edge", grad, *last_edge);
}

void check_adamw8bit_maxima(const at::Tensor& grad, const at::Tensor& state1,
                            const at::Tensor& state2, const at::Tensor& absmax1,
                            const at::Tensor& absmax2, const at::Tensor& levels,
                            const at::Tensor& scalars, double, double, const at::Tensor& maxima) {
  constexpr const char* kOp = "adamw8bit_maxima";
  check_state(kOp, grad, state1, state2, absmax1, absmax2, levels, scalars, 1);
  check_pair(kOp, "maxima", grad, maxima);
  TORCH_CHECK_VALUE(grad.numel() <= kQuantBlock, kOp, ": ", grad.numel(),
                    " elements, expected those of one block");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "adamw8bit(Tensor(a!) param, Tensor(b!)? compute_copy, Tensor grad, Tensor(c!) state1, "
      "Tensor(d!) state2, Tensor(e!) absmax1, Tensor(f!) absmax2, Tensor levels, Tensor scalars, "
      "float lr, float beta1, float beta2, float eps, float weight_decay, int first, Tensor? "
      "first_edge, Tensor? last_edge) -> ()");
  m.def(
      "adamw8bit_maxima(Tensor grad, Tensor state1, Tensor state2, Tensor absmax1, Tensor absmax2, "
      "Tensor levels, Tensor scalars, float beta1, float beta2, Tensor(a!) maxima) -> ()");
  m.def("adamw8bit_levels() -> Tensor", [] { return adamw8bit_levels(at::kCPU); });
}

}  // namespace fastsft
