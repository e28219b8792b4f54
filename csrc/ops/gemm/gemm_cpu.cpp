#include "ops/gemm/gemm.h"

#include <torch/library.h>

#include <algorithm>

#include "ops/cpu/scratch.h"
#include "ops/gemm/float_gemm.h"

namespace fastsft {
namespace {

// Widens operands to float32. ATen refuses bfloat16 x bfloat16 -> float32 on the CPU, and few
// processors multiply float16. The smaller operand is widened whole, the larger one in blocks of
// rows or columns.
void widened_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const bool narrow_out = out.scalar_type() != at::kFloat;
  const auto [by_columns, step] = cpu::widened_product(m, k, n, narrow_out);
  const int64_t dim = by_columns ? 1 : 0, size = out.size(dim);
  cpu::Scratch scratch(cpu::widened_floats(m, k, n, narrow_out));
  const at::Tensor kept = scratch.widened(by_columns ? a : b);
  for (int64_t begin = 0; begin < size; begin += step) {
    const int64_t count = std::min(step, size - begin);
    cpu::Scratch reused = scratch;  // every block reuses the same memory
    const at::Tensor block = reused.widened((by_columns ? b : a).narrow(dim, begin, count));
    at::Tensor part = out.narrow(dim, begin, count);
    const at::Tensor wide = narrow_out ? reused.widened(part) : part;
    cpu::float_gemm(by_columns ? kept : block, by_columns ? block : kept, wide, beta);
    if (narrow_out) part.copy_(wide);
  }
}

}  // namespace

void cpu::multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  const bool narrow = out.scalar_type() == at::kBFloat16 && cpu::takes_bfloat16();
  const auto product = a.scalar_type() == at::kFloat || narrow ? cpu::float_gemm : widened_gemm;
  product(a, b, out, beta);
}

namespace {

void gemm_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
              bool transpose_b, double beta) {
  check_gemm(a, b, out, transpose_a, transpose_b, beta);
  cpu::multiply(transpose_a ? a.t() : a, transpose_b ? b.t() : b, out, static_cast<float>(beta));
}

void gemm_add_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                  const at::Tensor& out, bool transpose_a, bool transpose_b) {
  check_gemm_add(a, b, addend, out, transpose_a, transpose_b);
  out.copy_(addend);
  gemm_cpu(a, b, out, transpose_a, transpose_b, 1.0);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("gemm", &gemm_cpu);
  m.impl("gemm_add", &gemm_add_cpu);
}

}  // namespace fastsft
