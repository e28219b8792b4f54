#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

enum class Fp8Type { kNone, kE4m3, kE5m2 };

// The properties of out = op(a) op(b) + beta * addend that determine which algorithms cuBLASLt can
// run. Products with equal keys use the same algorithm. m, n and k are the sizes of the
// row-major matrices in ops/gemm/gemm.h.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldadd = 0, ldout = 0;
  bool transpose_a = false, transpose_b = false;
  Dtype dtype = Dtype::kFloat, out_dtype = Dtype::kFloat;
  bool accumulates = false;  // beta is not 0
  bool tf32 = false;
  // Of 8-bit products (ops/gemm/scaled_gemm.h): a's type, where b's is kE4m3 and `dtype` is unused.
  Fp8Type fp8 = Fp8Type::kNone;
  bool rowwise_scales = false, fast_accumulation = false;
  // Row alignments in bytes: the largest power of two up to 256 that divides every row's address.
  uint64_t alignment_a = 256, alignment_b = 256, alignment_add = 256, alignment_out = 256;
  int device = 0;

  bool operator==(const GemmKey&) const = default;
  bool has_scales() const { return fp8 != Fp8Type::kNone; }
};

struct GemmKeyHash {
  size_t operator()(const GemmKey& key) const;
};

// Returns the key of out = op(a) op(b) + beta * addend for checked, non-empty operands. `addend`
// may be `out`, and must be if beta is 0. tf32 is torch.backends.cuda.matmul's setting (`--tf32
// True`; off by default) and applies to float32 operands only.
GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                 const at::Tensor& out, bool transpose_a, bool transpose_b, double beta);

// Returns the matrix, or a copy if its rows overlap (an expanded tensor).
at::Tensor with_separate_rows(const at::Tensor& matrix);

}  // namespace fastsft::cuda
