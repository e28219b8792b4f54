// A cuBLASLt for tests: the calls that csrc/ops/gemm makes, as strict as its pages, multiplied by
// plain loops in another order than the CPU ops'. The program that links it says when a product
// runs.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace fake_cublas_lt {

struct Desc {
  cublasComputeType_t compute;
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  const float *scale_a = nullptr, *scale_b = nullptr;
  int32_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int8_t fast_accumulation = 0;

  bool has_vectors() const { return mode_a == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; }
};

inline bool has_8_bits(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

// A column-major matrix.
struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, ld;

  size_t element_bytes() const { return has_8_bits(type) ? 1 : type == CUDA_R_32F ? 4 : 2; }
  // From the first element to the last.
  size_t bytes() const;
};

// d = alpha op(a) op(b) + beta c. 8-bit operands are multiplied by their scales. The inner
// dimension is added in `parts` ranges, whose sums are in the workspace when there is more than
// one.
struct Product {
  Desc desc;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void *d, *workspace;
  float alpha, beta;
  int64_t parts;
  size_t workspace_bytes;  // that the algorithm uses

  int64_t inner() const;
  // Return the factor of an operand's row or column.
  float scale_a(int64_t row) const;
  float scale_b(int64_t column) const;
  double flops() const;
  void compute() const;
};

// Of the program that links this: runs `product` in the order of `stream`, or refuses it.
cublasStatus_t run(const Product& product, cudaStream_t stream);
// Of the program that links this: reports an argument that no code of the product passes.
void report_wrong_call(const char* message);

}  // namespace fake_cublas_lt
