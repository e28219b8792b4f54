#include "ops/gemm/scaled_gemm.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void scaled_gemm(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                 const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                 double beta, bool rowwise, bool fast_accumulation) {
  FASTSFT_DISPATCH(scaled_gemm, a, scale_a, b, scale_b, addend, out, beta, rowwise,
                   fast_accumulation);
}

void check_scaled_gemm(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                       const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                       double beta, bool, bool) {
  constexpr const char* kOp = "scaled_gemm";
  check_tensors(kOp, {{"a", a},
                      {"scale_a", scale_a},
                      {"b", b},
                      {"scale_b", scale_b},
                      {"addend", addend},
                      {"out", out}});
  const auto dtype = a.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2, kOp, ": a is ", dtype,
                    ", expected Float8_e4m3fn or Float8_e5m2");
  check_dtype(kOp, {"b", b}, at::kFloat8_e4m3fn);
  check_state_dtype(kOp, {"out", out});
  check_dtype(kOp, {"addend", addend}, out.scalar_type());
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2, kOp, ": a and b must be matrices, got ",
                    a.sizes(), " and ", b.sizes());
  const int64_t m = a.size(0), k = a.size(1), n = b.size(0);
  check_shape(kOp, {"b", b}, {n, k});
  check_shape(kOp, {"out", out}, {m, n});
  check_shape(kOp, {"addend", addend}, {m, n});
  for (const auto& [scales, rows] :
       {std::pair{Arg{"scale_a", scale_a}, m}, {{"scale_b", scale_b}, n}}) {
    check_shape(kOp, scales, {rows});
    check_dtype(kOp, scales, at::kFloat);
  }
  TORCH_CHECK_VALUE(a.is_contiguous() && b.is_contiguous(), kOp, ": a and b must be contiguous");
  TORCH_CHECK_VALUE(k % kScaledGemmMultiple == 0 && n % kScaledGemmMultiple == 0, kOp, ": b is [",
                    n, ", ", k, "], expected multiples of ", kScaledGemmMultiple);
  TORCH_CHECK_VALUE(beta != 0 || addend.is_same(out), kOp, ": without beta the addend must be out");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "scaled_gemm(Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, Tensor addend, Tensor(a!) "
      "out, float beta, bool rowwise, bool fast_accumulation) -> ()");
}

}  // namespace fastsft
