#include "ops/fp8/fp8.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {
namespace {

// Checks the arguments that both ops have. `out` is [rows, columns].
void check_quantized(const char* op, const at::Tensor& x, const at::Tensor& out,
                     const at::Tensor& scales) {
  check_tensors(op, {{"x", x}, {"out", out}, {"scales", scales}});
  check_state_dtype(op, {"x", x});
  TORCH_CHECK_VALUE(x.dim() == 2, op, ": x has shape ", x.sizes(), ", expected [rows, columns]");
  const auto dtype = out.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2, op, ": out is ",
                    dtype, ", expected Float8_e4m3fn or Float8_e5m2");
  check_dtype(op, {"scales", scales}, at::kFloat);
  for (const Arg& arg : {Arg{"x", x}, Arg{"out", out}, Arg{"scales", scales}}) {
    TORCH_CHECK_VALUE(arg.tensor.is_contiguous(), op, ": ", arg.name, " must be contiguous");
  }
}

}  // namespace

void fp8_quantize(const at::Tensor& x, bool rowwise, bool power_of_2, const at::Tensor& out,
                  const at::Tensor& scales) {
  FASTSFT_DISPATCH(fp8_quantize, x, rowwise, power_of_2, out, scales);
}

void fp8_quantize_transposed(const at::Tensor& x, bool rowwise, bool power_of_2,
                             const at::Tensor& out, const at::Tensor& scales) {
  FASTSFT_DISPATCH(fp8_quantize_transposed, x, rowwise, power_of_2, out, scales);
}

void check_fp8_quantize(const at::Tensor& x, bool, bool, const at::Tensor& out,
                        const at::Tensor& scales) {
  constexpr const char* kOp = "fp8_quantize";
  check_quantized(kOp, x, out, scales);
  check_shape(kOp, {"out", out}, x.sizes());
  check_shape(kOp, {"scales", scales}, {x.size(0)});
}

void check_fp8_quantize_transposed(const at::Tensor& x, bool, bool, const at::Tensor& out,
                                   const at::Tensor& scales) {
  constexpr const char* kOp = "fp8_quantize_transposed";
  check_quantized(kOp, x, out, scales);
  TORCH_CHECK_VALUE(out.dim() == 2 && out.size(0) == x.size(1) && out.size(1) >= x.size(0), kOp,
                    ": out has shape ", out.sizes(), ", expected [", x.size(1), ", at least ",
                    x.size(0), "]");
  check_shape(kOp, {"scales", scales}, {x.size(1)});
}

void check_fp8_rows(const char* op, const at::Tensor& x, const at::Tensor& values,
                    const at::Tensor& scales) {
  check_tensors(op, {{"x", x}, {"values", values}, {"scales", scales}});
  check_dtype(op, {"values", values}, at::kFloat8_e4m3fn);
  check_shape(op, {"values", values}, x.sizes());
  check_dtype(op, {"scales", scales}, at::kFloat);
  check_shape(op, {"scales", scales}, {x.size(0)});
  TORCH_CHECK_VALUE(values.is_contiguous() && scales.is_contiguous(), op,
                    ": values and scales must be contiguous");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "fp8_quantize(Tensor x, bool rowwise, bool power_of_2, Tensor(a!) out, Tensor(b!) scales) -> "
      "()");
  m.def(
      "fp8_quantize_transposed(Tensor x, bool rowwise, bool power_of_2, Tensor(a!) out, Tensor(b!) "
      "scales) -> ()");
}

}  // namespace fastsft
