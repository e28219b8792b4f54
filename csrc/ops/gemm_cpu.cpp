#include "ops/gemm.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cpu/float_gemm.h"

namespace fastsft {
namespace {

constexpr int64_t kBlock = 4096;  // rows or columns converted at a time

// bfloat16 operands are widened in blocks of the longer side of the result, so that the float32
// copies stay small; ATen refuses bfloat16 x bfloat16 -> float32 on CPU.
void widened_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  const bool by_columns = out.size(1) > out.size(0);
  const int64_t dim = by_columns ? 1 : 0, size = out.size(dim);
  const at::Tensor kept = (by_columns ? a : b).to(at::kFloat);
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t count = std::min(kBlock, size - begin);
    const at::Tensor block = (by_columns ? b : a).narrow(dim, begin, count).to(at::kFloat);
    at::Tensor part = out.narrow(dim, begin, count);
    const at::Tensor wide = part.scalar_type() == at::kFloat ? part : part.to(at::kFloat);
    cpu::float_gemm(by_columns ? kept : block, by_columns ? block : kept, wide, beta);
    if (!wide.is_same(part)) part.copy_(wide);
  }
}

void gemm_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
              bool transpose_b, double beta) {
  check_gemm(a, b, out, transpose_a, transpose_b, beta);
  const at::Tensor left = transpose_a ? a.t() : a, right = transpose_b ? b.t() : b;
  const bool wide = a.scalar_type() == at::kFloat;
  (wide ? cpu::float_gemm : widened_gemm)(left, right, out, static_cast<float>(beta));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("gemm", &gemm_cpu); }

}  // namespace fastsft
