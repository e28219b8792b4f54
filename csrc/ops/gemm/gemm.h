#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// out = op(a) op(b) + beta * out, where op transposes if requested. All matrix products use this
// op.
//   op(a) [m, k], op(b) [k, n] of one dtype (float32, bfloat16 or float16), out [m, n] of that
//   dtype or float32; rows may be strided, columns are contiguous. Sums are float32; a bfloat16
//   result is rounded once.
// If beta is 0, the old content of `out` is ignored. k = 0 gives beta * out.
void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
          bool transpose_b, double beta);

// out = op(a) op(b) + addend. `addend` has the shape and dtype of `out`; its rows may be strided,
// its columns are contiguous. The result equals gemm with beta = 1 on a copy of `addend`. `addend`
// may be `out`, but must not overlap it otherwise.
void gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
              const at::Tensor& out, bool transpose_a, bool transpose_b);

// Runs gemm with cuBLASLt's proposal number `candidate` for these operands (best first by
// cuBLASLt's estimate), and returns how many proposals there are. Later gemm calls with the same
// shapes, dtypes and alignments use this algorithm, too. For measurements; CUDA only.
int64_t gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                       bool transpose_a, bool transpose_b, double beta, int64_t candidate);

void check_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                bool transpose_b, double beta);
void check_gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                    const at::Tensor& out, bool transpose_a, bool transpose_b);
void check_gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                          bool transpose_a, bool transpose_b, double beta, int64_t candidate);
// Checks the argument of the op `gemm_library_version(like)`, which returns cuBLASLt's version. An
// algorithm is valid for one version on one kind of GPU (tuned_gemms.h). CUDA only.
void check_gemm_library_version(const at::Tensor& like);

}  // namespace fastsft
