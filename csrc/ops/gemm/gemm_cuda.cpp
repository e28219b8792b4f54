#include "ops/gemm/gemm.h"

#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/gemm/gemm_key.h"
#include "ops/gemm/gemm_plans.h"
#include "ops/gemm/scaled_gemm.h"

namespace fastsft {
namespace {

// Computes the product in float32, for odd alignments for which cuBLASLt has no bfloat16 algorithm.
void widened_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                  bool transpose_b, double beta) {
  TORCH_CHECK(a.scalar_type() != at::kFloat, "gemm: cuBLASLt has no algorithm for ", a.sizes(),
              " and ", b.sizes());
  const at::Tensor wide = out.scalar_type() == at::kFloat ? out : out.to(at::kFloat);
  gemm(a.to(at::kFloat), b.to(at::kFloat), wide, transpose_a, transpose_b, beta);
  if (!wide.is_same(out)) out.copy_(wide);
}

// out = beta * addend, where the sum has no terms; `addend` is `out` or does not overlap it.
void empty_sum(const at::Tensor& addend, const at::Tensor& out, double beta) {
  if (!addend.is_same(out)) out.copy_(addend);
  beta == 0 ? out.zero_() : out.mul_(beta);
}

// out = op(a) op(b) + beta * addend; `addend` is `out` or does not overlap it.
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
             const at::Tensor& out, bool transpose_a, bool transpose_b, double beta) {
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(a.device());
  if (a.numel() == 0) return empty_sum(addend, out, beta);
  const at::Tensor left = cuda::with_separate_rows(a), right = cuda::with_separate_rows(b);
  const cuda::GemmKey key =
      cuda::gemm_key(left, right, addend, out, transpose_a, transpose_b, beta);
  if (cuda::run_planned(key, {.a = left.data_ptr(),
                              .b = right.data_ptr(),
                              .addend = addend.data_ptr(),
                              .out = out.data_ptr(),
                              .beta = static_cast<float>(beta)}))
    return;
  if (!addend.is_same(out)) out.copy_(addend);
  widened_gemm(a, b, out, transpose_a, transpose_b, beta);
}

void gemm_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
               bool transpose_b, double beta) {
  check_gemm(a, b, out, transpose_a, transpose_b, beta);
  product(a, b, out, out, transpose_a, transpose_b, beta);
}

void gemm_add_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                   const at::Tensor& out, bool transpose_a, bool transpose_b) {
  check_gemm_add(a, b, addend, out, transpose_a, transpose_b);
  product(a, b, cuda::with_separate_rows(addend), out, transpose_a, transpose_b, 1.0);
}

void scaled_gemm_cuda(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                      const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                      double beta, bool rowwise, bool fast_accumulation) {
  check_scaled_gemm(a, scale_a, b, scale_b, addend, out, beta, rowwise, fast_accumulation);
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(a.device());
  if (a.numel() == 0) return empty_sum(addend, out, beta);
  const at::Tensor added = cuda::with_separate_rows(addend);
  cuda::GemmKey key = cuda::gemm_key(a, b, added, out, false, true, beta);
  key.dtype = cuda::Dtype::kBFloat16;
  key.fp8 = a.scalar_type() == at::kFloat8_e5m2 ? cuda::Fp8Type::kE5m2 : cuda::Fp8Type::kE4m3;
  key.rowwise_scales = rowwise;
  key.fast_accumulation = fast_accumulation;
  const bool ran = cuda::run_planned(key, {.a = a.data_ptr(),
                                           .b = b.data_ptr(),
                                           .addend = added.data_ptr(),
                                           .out = out.data_ptr(),
                                           .beta = static_cast<float>(beta),
                                           .scale_a = scale_a.data_ptr<float>(),
                                           .scale_b = scale_b.data_ptr<float>()});
  TORCH_CHECK(ran, "scaled_gemm: cuBLASLt has no 8-bit algorithm on this GPU for ", a.sizes(),
              " and ", b.sizes(), rowwise ? " with a scale for each row" : "",
              "; train without --fp8", rowwise ? ", or with --fp8 tensorwise" : "");
}

int64_t gemm_candidate_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                            bool transpose_a, bool transpose_b, double beta, int64_t candidate) {
  check_gemm_candidate(a, b, out, transpose_a, transpose_b, beta, candidate);
  TORCH_CHECK_VALUE(a.numel() > 0 && out.numel() > 0, "gemm_candidate: an operand is empty");
  const c10::cuda::CUDAGuard guard(a.device());
  const at::Tensor left = cuda::with_separate_rows(a), right = cuda::with_separate_rows(b);
  const cuda::GemmKey key = cuda::gemm_key(left, right, out, out, transpose_a, transpose_b, beta);
  const auto plan = cuda::gemm_plan(key);
  const auto count = static_cast<int64_t>(plan->candidates.size());
  TORCH_CHECK_VALUE(candidate < count, "gemm_candidate: candidate ", candidate, " of ", count);
  cuda::choose_gemm_candidate(key, static_cast<size_t>(candidate));
  cuda::run_gemm(*plan, key, plan->candidates[static_cast<size_t>(candidate)],
                 {.a = left.data_ptr(),
                  .b = right.data_ptr(),
                  .addend = out.data_ptr(),
                  .out = out.data_ptr(),
                  .beta = static_cast<float>(beta)});
  return count;
}

int64_t gemm_library_version_cuda(const at::Tensor& like) {
  check_gemm_library_version(like);
  return static_cast<int64_t>(cublasLtGetVersion());
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("gemm", &gemm_cuda);
  m.impl("gemm_add", &gemm_add_cuda);
  m.impl("scaled_gemm", &scaled_gemm_cuda);
  m.impl("gemm_candidate", &gemm_candidate_cuda);
  m.impl("gemm_library_version", &gemm_library_version_cuda);
}

}  // namespace fastsft
