#include "ops/gemm/gemm_candidate.h"

#include <torch/library.h>

#include "ops/dispatch.h"
#include "ops/gemm/gemm.h"

namespace fastsft {

int64_t gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                       bool transpose_a, bool transpose_b, double beta, int64_t candidate) {
  FASTSFT_DISPATCH(gemm_candidate, a, b, out, transpose_a, transpose_b, beta, candidate);
}

void check_gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                          bool transpose_a, bool transpose_b, double beta, int64_t candidate) {
  check_gemm(a, b, out, transpose_a, transpose_b, beta);
  TORCH_CHECK_VALUE(candidate >= 0, "gemm_candidate: candidate is ", candidate,
                    ", expected 0 or more");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "gemm_candidate(Tensor a, Tensor b, Tensor(a!) out, bool transpose_a, bool transpose_b, "
      "float beta, int candidate) -> int");
}

}  // namespace fastsft
