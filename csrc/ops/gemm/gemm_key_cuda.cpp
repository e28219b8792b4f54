#include "ops/gemm/gemm_key.h"

#include <ATen/Context.h>

#include <algorithm>

#include "ops/cuda/arguments.h"

namespace fastsft::cuda {
namespace {

bool rows_are_separate(const at::Tensor& matrix) {
  return (matrix.size(0) <= 1 || matrix.stride(0) >= matrix.size(1)) &&
         (matrix.size(1) <= 1 || matrix.stride(1) == 1);
}

// The stride of a single row means nothing, but libraries want one that holds a row.
int64_t leading_dimension(const at::Tensor& matrix) {
  return std::max(matrix.size(0) > 1 ? matrix.stride(0) : 0, matrix.size(1));
}

}  // namespace

size_t GemmKeyHash::operator()(const GemmKey& key) const {
  uint64_t hash = 0;
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  for (const int64_t size : {key.m, key.n, key.k, key.lda, key.ldb, key.ldadd, key.ldout}) {
    mix(static_cast<uint64_t>(size));
  }
  for (const uint64_t value :
       {key.alignment_a, key.alignment_b, key.alignment_add, key.alignment_out}) {
    mix(value);
  }
  mix(static_cast<uint64_t>(key.transpose_a) | static_cast<uint64_t>(key.transpose_b) << 1 |
      static_cast<uint64_t>(key.dtype) << 2 | static_cast<uint64_t>(key.out_dtype) << 3 |
      static_cast<uint64_t>(key.accumulates) << 4 | static_cast<uint64_t>(key.tf32) << 5 |
      static_cast<uint64_t>(key.device) << 6);
  return static_cast<size_t>(hash);
}

at::Tensor with_separate_rows(const at::Tensor& matrix) {
  return rows_are_separate(matrix) ? matrix : matrix.clone(at::MemoryFormat::Contiguous);
}

GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                 const at::Tensor& out, bool transpose_a, bool transpose_b, double beta) {
  const bool tf32 =
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
  TORCH_CHECK_VALUE(rows_are_separate(out), "gemm: the rows of out overlap");
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(transpose_a ? 0 : 1),
          .lda = leading_dimension(a),
          .ldb = leading_dimension(b),
          .ldadd = leading_dimension(addend),
          .ldout = leading_dimension(out),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .dtype = dtype_of(a),
          .out_dtype = dtype_of(out),
          .accumulates = beta != 0,
          .tf32 = tf32 && dtype_of(a) == Dtype::kFloat,
          .alignment_a = alignment_of(a),
          .alignment_b = alignment_of(b),
          .alignment_add = alignment_of(addend),
          .alignment_out = alignment_of(out),
          .device = static_cast<int>(a.device().index())};
}

}  // namespace fastsft::cuda
