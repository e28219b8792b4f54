#include "ops/gemm/gemm_operands.h"

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

at::Tensor with_separate_rows(const at::Tensor& matrix) {
  return rows_are_separate(matrix) ? matrix : matrix.clone(at::MemoryFormat::Contiguous);
}

GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                 bool transpose_b, double beta, bool tf32) {
  TORCH_CHECK_VALUE(rows_are_separate(out), "gemm: the rows of out overlap");
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(transpose_a ? 0 : 1),
          .lda = leading_dimension(a),
          .ldb = leading_dimension(b),
          .ldout = leading_dimension(out),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .dtype = dtype_of(a),
          .out_dtype = dtype_of(out),
          .accumulates = beta != 0,
          .tf32 = tf32 && dtype_of(a) == Dtype::kFloat,
          .alignment_a = alignment_of(a),
          .alignment_b = alignment_of(b),
          .alignment_out = alignment_of(out),
          .device = static_cast<int>(a.device().index())};
}

}  // namespace fastsft::cuda
