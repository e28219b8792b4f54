#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// gemm (ops/gemm/gemm.h) by the algorithm number `candidate` of those that the device's library
// proposes for these operands, best first by its own estimate; returns how many there are. From
// then on gemm takes this one for products of the same shapes, dtypes and alignments. For
// measuring: on CUDA only.
int64_t gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                       bool transpose_a, bool transpose_b, double beta, int64_t candidate);

void check_gemm_candidate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                          bool transpose_a, bool transpose_b, double beta, int64_t candidate);

}  // namespace fastsft
