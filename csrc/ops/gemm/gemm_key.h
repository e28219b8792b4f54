#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// All that decides which algorithm cuBLASLt may run for out = op(a) op(b) + beta * addend: products
// of equal keys take the same algorithm. Sizes are those of the row-major matrices in
// ops/gemm/gemm.h.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldadd = 0, ldout = 0;
  bool transpose_a = false, transpose_b = false;
  Dtype dtype = Dtype::kFloat, out_dtype = Dtype::kFloat;
  bool accumulates = false;  // beta is not 0
  bool tf32 = false;
  // Of every row's address: the largest power of two up to 256.
  uint64_t alignment_a = 256, alignment_b = 256, alignment_add = 256, alignment_out = 256;
  int device = 0;

  bool operator==(const GemmKey&) const = default;
};

struct GemmKeyHash {
  size_t operator()(const GemmKey& key) const;
};

// The key of out = op(a) op(b) + beta * addend for checked operands of at least one element each.
// `addend` may be `out`; with beta = 0 it must be.
// TF32, which counts for float32 operands only, as torch.backends.cuda.matmul says, which `--tf32
// True` sets; off by default.
GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                 const at::Tensor& out, bool transpose_a, bool transpose_b, double beta);

// The tensor itself when its rows are at least a row apart, otherwise (expanded) a copy.
at::Tensor with_separate_rows(const at::Tensor& matrix);

}  // namespace fastsft::cuda
