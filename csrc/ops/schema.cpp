#include "ops/schema.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace fastsft {

void check_tensors(const char* op, std::initializer_list<Arg> args) {
  const at::Device device = args.begin()->tensor.device();
  for (const Arg& arg : args) {
    TORCH_CHECK_VALUE(arg.tensor.defined(), op, ": ", arg.name, " is undefined");
    TORCH_CHECK_VALUE(arg.tensor.device() == device, op, ": ", arg.name, " is on ",
                      arg.tensor.device(), ", expected ", device);
    TORCH_CHECK_VALUE(arg.tensor.dim() == 0 || arg.tensor.numel() == 0 ||
                          arg.tensor.size(-1) == 1 || arg.tensor.stride(-1) == 1,
                      op, ": ", arg.name, " must be contiguous in its last dimension");
    TORCH_CHECK_VALUE(!(arg.tensor.requires_grad() && c10::GradMode::is_enabled()), op, ": ",
                      arg.name,
                      " requires grad, but this op records no graph; use torch.no_grad()");
  }
}

void check_shape(const char* op, const Arg& arg, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(arg.tensor.sizes() == expected, op, ": ", arg.name, " has shape ",
                    arg.tensor.sizes(), ", expected ", expected);
}

void check_dtype(const char* op, const Arg& arg, at::ScalarType expected) {
  TORCH_CHECK_VALUE(arg.tensor.scalar_type() == expected, op, ": ", arg.name, " is ",
                    arg.tensor.scalar_type(), ", expected ", expected);
}

void check_compute_dtype(const char* op, const Arg& arg) {
  const auto dtype = arg.tensor.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, op, ": ",
                    arg.name, " is ", dtype, ", expected Float, BFloat16 or Half");
}

void check_state_dtype(const char* op, const Arg& arg) {
  const auto dtype = arg.tensor.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16, op, ": ", arg.name, " is ",
                    dtype, ", expected Float or BFloat16");
}

void check_master(const char* op, const at::Tensor& param,
                  const std::optional<at::Tensor>& compute_copy) {
  const auto dtype = param.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kShort, op, ": param is ", dtype,
                    ", expected Float, or Short for the lower half of a split master");
  TORCH_CHECK_VALUE(dtype == at::kFloat || compute_copy, op,
                    ": a split master needs compute_copy, its upper half");
  if (!compute_copy) return;
  const Arg copy{"compute_copy", *compute_copy};
  check_tensors(op, {{"param", param}, copy});
  if (dtype == at::kFloat && compute_copy->scalar_type() == at::kHalf)
    check_dtype(op, copy, at::kHalf);
  else
    check_dtype(op, copy, at::kBFloat16);
  check_shape(op, copy, {param.numel()});
}

}  // namespace fastsft
