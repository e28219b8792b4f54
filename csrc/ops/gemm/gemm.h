#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// out = op(a) op(b) + beta * out, with op the transpose where asked. All matrix products go through
// here.
//   op(a) [m, k], op(b) [k, n] of one dtype (float32, bfloat16 or float16), out [m, n] of that
//   dtype or float32; rows may be strided, columns are contiguous. Sums are formed in float32,
//   bfloat16 rounded once.
// With beta = 0 what `out` held does not matter. k = 0 gives beta * out.
void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
          bool transpose_b, double beta);

// out = op(a) op(b) + addend, with `addend` of the shape and dtype of `out`, its rows strided and
// its columns contiguous. The result is that of gemm with beta = 1 on a copy of `addend`, which may
// be `out`, but must not overlap it otherwise.
void gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
              const at::Tensor& out, bool transpose_a, bool transpose_b);

// gemm by the algorithm number `candidate` of those that the device's library proposes for these
// operands, best first by its own estimate; returns how many there are. From then on gemm takes
// this one for products of the same shapes, dtypes and alignments. For measuring: on CUDA only.
int64_t gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                       bool transpose_a, bool transpose_b, double beta, int64_t candidate);

void check_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                bool transpose_b, double beta);
void check_gemm_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                    const at::Tensor& out, bool transpose_a, bool transpose_b);
void check_gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                          bool transpose_a, bool transpose_b, double beta, int64_t candidate);
// The op `gemm_library_version(like)` is cuBLASLt's release, of tensors on CUDA alone: algorithms
// of products mean something to one release on one kind of GPU (tuned_gemms.h).
void check_gemm_library_version(const at::Tensor& like);

}  // namespace fastsft
