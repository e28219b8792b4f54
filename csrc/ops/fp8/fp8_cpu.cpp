#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/fp8/fp8.h"

namespace fastsft::cpu {
namespace {

struct E4m3 {
  static constexpr float kLimit = kE4m3Limit;
  static constexpr uint32_t kDropped = 20;    // mantissa bits of float32 that the format lacks
  static constexpr uint32_t kRebias = 120;    // difference of the exponents' biases
  static constexpr float kAligns = 16384.0f;  // its last mantissa bit is the least subnormal number
};

struct E5m2 {
  static constexpr float kLimit = kE5m2Limit;
  static constexpr uint32_t kDropped = 21;
  static constexpr uint32_t kRebias = 112;
  static constexpr float kAligns = 128.0f;
};

// Rounds to nearest even; larger values become the largest finite number, NaN stays NaN. The code
// has no branches, so loops vectorise.
template <typename Format>
FASTSFT_INLINE uint8_t to_fp8(float value) {
  const uint32_t sign = bits_of(value) >> 24 & 0x80u;
  const float all = float_of(bits_of(value) & 0x7FFFFFFFu);
  const float size = all > Format::kLimit ? Format::kLimit : all;
  const uint32_t bits = bits_of(size);
  constexpr uint32_t kHalf = (1u << (Format::kDropped - 1)) - 1;
  const uint32_t last = bits >> Format::kDropped & 1u;
  const uint32_t normal = (bits - (Format::kRebias << 23) + kHalf + last) >> Format::kDropped;
  const uint32_t subnormal = bits_of(size + Format::kAligns) - bits_of(Format::kAligns);
  const uint32_t finite = bits < (Format::kRebias + 1) << 23 ? subnormal : normal;
  return static_cast<uint8_t>(sign | (all == all ? finite : 0x7Fu));
}

// Returns the bits of the largest magnitude. They are compared as integers, so that NaN is larger
// than all numbers; it counts as infinite.
template <typename T>
FASTSFT_INLINE uint32_t largest(const T* x, int64_t count) {
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t size = bits_of(to_float(x[i])) & 0x7FFFFFFFu;
    most = size > most ? size : most;
  }
  return most < 0x7F800000u ? most : 0x7F800000u;
}

// How a factor follows from amax.
struct FactorRule {
  const uint32_t* amax;  // of the matrix; null: of each row
  bool power_of_2;

  FASTSFT_INLINE float factor(uint32_t most, float limit) const {
    const double size = float_of(most);
    const auto exact = static_cast<float>(limit / (size < kLeastAmax ? kLeastAmax : size));
    return power_of_2 ? float_of(bits_of(exact) & 0xFF800000u) : exact;
  }
};

template <typename Format, typename T>
FASTSFT_INLINE void cast(const T* x, float factor, uint8_t* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = to_fp8<Format>(to_float(x[i]) * factor);
}

// The rows [begin, end) of a matrix, and where their bytes and scales go.
template <typename T>
struct Rows {
  const T* x;
  int64_t begin, end, columns;
  uint8_t* out;
  float* scales;
};

template <typename Format, typename T>
FASTSFT_INLINE void quantize(const Rows<T>& rows, const FactorRule& rule) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T* x = rows.x + i * rows.columns;
    const uint32_t most = rule.amax ? *rule.amax : largest(x, rows.columns);
    const float factor = rule.factor(most, Format::kLimit);
    rows.scales[i] = 1.0f / factor;
    cast<Format>(x, factor, rows.out + i * rows.columns, rows.columns);
  }
}

constexpr int64_t kTile = 64;

// Columns [begin, end) of a matrix with `rows` rows; they become rows of `width` bytes.
template <typename T>
struct Columns : Rows<T> {
  int64_t rows, width;
};

// Writes the factors of `count` columns from `x` on.
template <typename Format, typename T>
FASTSFT_INLINE void column_factors(const Columns<T>& columns, const T* x, const FactorRule& rule,
                                   float* factors, int64_t count) {
  uint32_t most[kTile] = {};
  for (int64_t i = 0; rule.amax == nullptr && i < columns.rows; ++i) {
    const T* row = x + i * columns.columns;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t size = bits_of(to_float(row[j])) & 0x7FFFFFFFu;
      most[j] = size > most[j] ? size : most[j];
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t finite_or_infinite = most[j] < 0x7F800000u ? most[j] : 0x7F800000u;
    factors[j] = rule.factor(rule.amax ? *rule.amax : finite_or_infinite, Format::kLimit);
  }
}

template <typename Format, typename T>
FASTSFT_INLINE void quantize_columns(const Columns<T>& columns, const FactorRule& rule) {
  float factors[kTile];
  uint8_t cast_row[kTile];
  for (int64_t begin = columns.begin; begin < columns.end; begin += kTile) {
    const int64_t count = std::min(kTile, columns.end - begin);
    const T* x = columns.x + begin;
    uint8_t* out = columns.out + begin * columns.width;
    column_factors<Format>(columns, x, rule, factors, count);
    for (int64_t i = 0; i < columns.rows; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < count; ++j)
        cast_row[j] = to_fp8<Format>(to_float(x[i * columns.columns + j]) * factors[j]);
      for (int64_t j = 0; j < count; ++j) out[j * columns.width + i] = cast_row[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      std::fill(out + j * columns.width + columns.rows, out + (j + 1) * columns.width, uint8_t{0});
      columns.scales[begin + j] = 1.0f / factors[j];
    }
  }
}

template <typename T>
FASTSFT_INLINE void quantize(const Rows<T>& rows, const FactorRule& rule, bool e5m2) {
  if (e5m2)
    quantize<E5m2>(rows, rule);
  else
    quantize<E4m3>(rows, rule);
}

template <typename T>
FASTSFT_INLINE void quantize_columns(const Columns<T>& columns, const FactorRule& rule, bool e5m2) {
  if (e5m2)
    quantize_columns<E5m2>(columns, rule);
  else
    quantize_columns<E4m3>(columns, rule);
}

// Run on one thread.
FASTSFT_CLONES uint32_t largest_magnitude(const float* x, int64_t count) {
  return largest(x, count);
}
FASTSFT_CLONES uint32_t largest_magnitude(const bfloat16* x, int64_t count) {
  return largest(x, count);
}
FASTSFT_CLONES void fp8_rows(const Rows<float>& rows, const FactorRule& rule, bool e5m2) {
  quantize(rows, rule, e5m2);
}
FASTSFT_CLONES void fp8_rows(const Rows<bfloat16>& rows, const FactorRule& rule, bool e5m2) {
  quantize(rows, rule, e5m2);
}
FASTSFT_CLONES void fp8_columns(const Columns<float>& columns, const FactorRule& rule, bool e5m2) {
  quantize_columns(columns, rule, e5m2);
}
FASTSFT_CLONES void fp8_columns(const Columns<bfloat16>& columns, const FactorRule& rule,
                                bool e5m2) {
  quantize_columns(columns, rule, e5m2);
}

template <typename T>
uint32_t matrix_amax(const at::Tensor& x) {
  std::atomic<uint32_t> most{0};
  at::parallel_for(0, x.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    const uint32_t mine = largest_magnitude(x.const_data_ptr<T>() + begin, end - begin);
    uint32_t seen = most.load();
    while (mine > seen && !most.compare_exchange_weak(seen, mine)) {
    }
  });
  return most.load();
}

template <typename T>
Rows<T> rows_of(const at::Tensor& x, const at::Tensor& out, const at::Tensor& scales, int64_t begin,
                int64_t end) {
  return {x.const_data_ptr<T>(),   begin, end, x.size(1), static_cast<uint8_t*>(out.data_ptr()),
          scales.data_ptr<float>()};
}

// Calls run<T>() for a dtype that `check_state_dtype` accepts.
template <typename Run>
void dispatch_wide(c10::ScalarType dtype, const Run& run) {
  if (dtype == c10::ScalarType::Float)
    run.template operator()<float>();
  else
    run.template operator()<bfloat16>();
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void fp8_quantize_cpu(const at::Tensor& x, bool rowwise, bool power_of_2, const at::Tensor& out,
                      const at::Tensor& scales) {
  check_fp8_quantize(x, rowwise, power_of_2, out, scales);
  const bool e5m2 = out.scalar_type() == at::kFloat8_e5m2;
  cpu::dispatch_wide(x.scalar_type(), [&]<typename T>() {
    const uint32_t amax = rowwise ? 0 : cpu::matrix_amax<T>(x);
    const cpu::FactorRule rule{rowwise ? nullptr : &amax, power_of_2};
    at::parallel_for(0, x.size(0), cpu::rows_per_task(x.size(1)), [&](int64_t begin, int64_t end) {
      cpu::fp8_rows(cpu::rows_of<T>(x, out, scales, begin, end), rule, e5m2);
    });
  });
}

void fp8_quantize_transposed_cpu(const at::Tensor& x, bool rowwise, bool power_of_2,
                                 const at::Tensor& out, const at::Tensor& scales) {
  check_fp8_quantize_transposed(x, rowwise, power_of_2, out, scales);
  const bool e5m2 = out.scalar_type() == at::kFloat8_e5m2;
  cpu::dispatch_wide(x.scalar_type(), [&]<typename T>() {
    const uint32_t amax = rowwise ? 0 : cpu::matrix_amax<T>(x);
    const cpu::FactorRule rule{rowwise ? nullptr : &amax, power_of_2};
    const int64_t rows = x.size(0);
    at::parallel_for(0, x.size(1), cpu::rows_per_task(rows), [&](int64_t begin, int64_t end) {
      cpu::fp8_columns({cpu::rows_of<T>(x, out, scales, begin, end), rows, out.size(1)}, rule,
                       e5m2);
    });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("fp8_quantize", &fp8_quantize_cpu);
  m.impl("fp8_quantize_transposed", &fp8_quantize_transposed_cpu);
}

}  // namespace fastsft
