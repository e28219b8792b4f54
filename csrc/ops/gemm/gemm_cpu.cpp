#include "ops/gemm/gemm.h"

#include <torch/library.h>

#include <algorithm>
#include <array>

#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/gemm/float_gemm.h"
#include "ops/gemm/scaled_gemm.h"

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

using Fp8Values = std::array<float, 256>;  // of all bit patterns

template <typename Format>
Fp8Values values_of_bits() {
  Fp8Values values{};
  for (size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = static_cast<float>(Format(static_cast<uint8_t>(bits), Format::from_bits()));
  }
  return values;
}

const Fp8Values& fp8_values(c10::ScalarType dtype) {
  static const Fp8Values e4m3 = values_of_bits<c10::Float8_e4m3fn>();
  static const Fp8Values e5m2 = values_of_bits<c10::Float8_e5m2>();
  return dtype == c10::ScalarType::Float8_e5m2 ? e5m2 : e4m3;
}

FASTSFT_CLONES void widen_fp8_row(const uint8_t* from, const float* values, float scale, float* to,
                                  int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = values[from[i]] * scale;
}

// A matrix of 8-bit floats with a factor for each row.
struct ScaledRows {
  at::Tensor matrix, scales;

  ScaledRows rows(int64_t begin, int64_t count) const {
    return {matrix.narrow(0, begin, count), scales.narrow(0, begin, count)};
  }

  // Returns a float32 copy.
  at::Tensor widened(cpu::Scratch& scratch) const {
    const at::Tensor to = scratch.take(matrix.sizes());
    const Fp8Values& values = fp8_values(matrix.scalar_type());
    const auto* from = static_cast<const uint8_t*>(matrix.const_data_ptr());
    const int64_t columns = matrix.size(1);
    at::parallel_for(
        0, matrix.size(0), cpu::rows_per_task(columns), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            widen_fp8_row(from + i * columns, values.data(), scales.const_data_ptr<float>()[i],
                          to.data_ptr<float>() + i * columns, columns);
          }
        });
    return to;
  }
};

// Widens the smaller operand whole and the larger one in blocks of rows, as gemm does.
void scaled_gemm_cpu(const at::Tensor& a, const at::Tensor& scale_a, const at::Tensor& b,
                     const at::Tensor& scale_b, const at::Tensor& addend, const at::Tensor& out,
                     double beta, bool rowwise, bool fast_accumulation) {
  check_scaled_gemm(a, scale_a, b, scale_b, addend, out, beta, rowwise, fast_accumulation);
  if (!addend.is_same(out)) out.copy_(addend);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(0);
  const bool narrow_out = out.scalar_type() != at::kFloat;
  const auto [by_columns, step] = cpu::widened_product(m, k, n, narrow_out);
  const ScaledRows left{a, scale_a}, right{b, scale_b};
  const ScaledRows &whole = by_columns ? left : right, &cut = by_columns ? right : left;
  cpu::Scratch scratch(cpu::widened_floats(m, k, n, narrow_out));
  const at::Tensor kept = whole.widened(scratch);
  for (int64_t begin = 0; begin < cut.matrix.size(0); begin += step) {
    const int64_t count = std::min(step, cut.matrix.size(0) - begin);
    cpu::Scratch reused = scratch;  // every block reuses the same memory
    const at::Tensor block = cut.rows(begin, count).widened(reused);
    at::Tensor part = out.narrow(by_columns ? 1 : 0, begin, count);
    const at::Tensor wide = narrow_out ? reused.widened(part) : part;
    cpu::float_gemm(by_columns ? kept : block, (by_columns ? block : kept).t(), wide,
                    static_cast<float>(beta));
    if (narrow_out) part.copy_(wide);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("gemm", &gemm_cpu);
  m.impl("gemm_add", &gemm_add_cpu);
  m.impl("scaled_gemm", &scaled_gemm_cpu);
}

}  // namespace fastsft
