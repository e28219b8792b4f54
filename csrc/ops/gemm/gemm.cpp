#include "ops/gemm/gemm.h"

#include <torch/library.h>

#include "ops/schema.h"

namespace fastsft {

void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
          bool transpose_b, double beta) {
  FASTSFT_DISPATCH(gemm, a, b, out, transpose_a, transpose_b, beta);
}

void gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
              const at::Tensor& out, bool transpose_a, bool transpose_b) {
  FASTSFT_DISPATCH(gemm_add, a, b, addend, out, transpose_a, transpose_b);
}

int64_t gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                       bool transpose_a, bool transpose_b, double beta, int64_t candidate) {
  FASTSFT_DISPATCH(gemm_candidate, a, b, out, transpose_a, transpose_b, beta, candidate);
}

void check_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                bool transpose_b, double beta) {
  constexpr const char* kOp = "gemm";
  check_tensors(kOp, {{"a", a}, {"b", b}, {"out", out}});
  check_compute_dtype(kOp, {"a", a});
  check_dtype(kOp, {"b", b}, a.scalar_type());
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2, kOp, ": a and b must be matrices, got ",
                    a.sizes(), " and ", b.sizes());
  if (out.scalar_type() != at::kFloat) check_dtype(kOp, {"out", out}, a.scalar_type());
  const int64_t inner_a = a.size(transpose_a ? 0 : 1), inner_b = b.size(transpose_b ? 1 : 0);
  TORCH_CHECK_VALUE(inner_a == inner_b, kOp, ": inner sizes differ: ", inner_a, " in a, ", inner_b,
                    " in b");
  check_shape(kOp, {"out", out}, {a.size(transpose_a ? 1 : 0), b.size(transpose_b ? 0 : 1)});
}

void check_gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                    const at::Tensor& out, bool transpose_a, bool transpose_b) {
  constexpr const char* kOp = "gemm_add";
  check_gemm(a, b, out, transpose_a, transpose_b, 1.0);
  check_tensors(kOp, {{"a", a}, {"addend", addend}});
  check_dtype(kOp, {"addend", addend}, out.scalar_type());
  check_shape(kOp, {"addend", addend}, {out.size(0), out.size(1)});
}

void check_gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                          bool transpose_a, bool transpose_b, double beta, int64_t candidate) {
  check_gemm(a, b, out, transpose_a, transpose_b, beta);
  TORCH_CHECK_VALUE(candidate >= 0, "gemm_candidate: candidate is ", candidate,
                    ", expected 0 or more");
}

void check_gemm_library_version(const at::Tensor& like) {
  check_tensors("gemm_library_version", {{"like", like}});
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "gemm(Tensor a, Tensor b, Tensor(a!) out, bool transpose_a, bool transpose_b, float beta) -> "
      "()");
  m.def(
      "gemm_add(Tensor a, Tensor b, Tensor addend, Tensor(a!) out, bool transpose_a, bool "
      "transpose_b) -> ()");
  m.def(
      "gemm_candidate(Tensor a, Tensor b, Tensor(a!) out, bool transpose_a, bool transpose_b, "
      "float beta, int candidate) -> int");
  m.def("gemm_library_version(Tensor like) -> int");
}

}  // namespace fastsft
