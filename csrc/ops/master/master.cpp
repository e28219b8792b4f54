#include "ops/master/master.h"

#include "ops/check.h"

namespace fastsft {

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
