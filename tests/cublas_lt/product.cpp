#include <cmath>
#include <vector>

#include "cublas_lt/cublas_lt.h"

namespace fake_cublas_lt {
namespace {

float from_16_bits(uint16_t bits, cudaDataType_t type) {
  if (type == CUDA_R_16BF) return __builtin_bit_cast(float, uint32_t{bits} << 16);
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}

uint16_t to_16_bits(float value, cudaDataType_t type) {
  if (type == CUDA_R_16F) return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
  if (value != value) return 0x7fff;
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float from_8_bits(uint8_t bits, cudaDataType_t type) {
  const bool wide = type == CUDA_R_8F_E5M2;  // has a wider exponent, infinities, and more NaNs
  const int mantissa_bits = wide ? 2 : 3, bias = wide ? 15 : 7;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  if (wide ? exponent == 31 : (bits & 0x7f) == 0x7f)
    return wide && mantissa == 0 ? (bits >> 7 ? -INFINITY : INFINITY) : NAN;
  const int whole = exponent == 0 ? mantissa : mantissa | 1 << mantissa_bits;
  const float size =
      std::ldexp(static_cast<float>(whole), (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
  return bits >> 7 ? -size : size;
}

float element(const void* data, const Layout& layout, int64_t row, int64_t column) {
  const int64_t at = column * layout.ld + row;
  if (layout.type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (has_8_bits(layout.type))
    return from_8_bits(static_cast<const uint8_t*>(data)[at], layout.type);
  return from_16_bits(static_cast<const uint16_t*>(data)[at], layout.type);
}

// An operand as [outer, inner] floats. TF32 keeps ten bits after the leading one.
std::vector<float> packed(const void* data, const Layout& layout, bool inner_is_row, bool tf32) {
  const int64_t outer = inner_is_row ? layout.columns : layout.rows;
  const int64_t inner = inner_is_row ? layout.rows : layout.columns;
  std::vector<float> made(static_cast<size_t>(outer * inner));
  float* out = made.data();
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const float value = inner_is_row ? element(data, layout, i, o) : element(data, layout, o, i);
      const auto bits = __builtin_bit_cast(uint32_t, value);
      *out++ = tf32 ? __builtin_bit_cast(float, bits & ~uint32_t{0x1fff}) : value;
    }
  }
  return made;
}

// Sixteen sums side by side: an order that no CPU op has.
float dot(const float* x, const float* y, int64_t count) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; ++j) sums[j] += x[i + j] * y[i + j];
  }
  float sum = 0;
  for (; i < count; ++i) sum += x[i] * y[i];
  for (const float each : sums) sum += each;
  return sum;
}

}  // namespace

size_t Layout::bytes() const {
  return static_cast<size_t>((columns - 1) * ld + rows) * element_bytes();
}

int64_t Product::inner() const {
  return desc.trans_a == CUBLAS_OP_T ? a_layout.rows : a_layout.columns;
}

float Product::scale_a(int64_t row) const {
  return desc.scale_a == nullptr ? 1.0f : desc.scale_a[desc.has_vectors() ? row : 0];
}

float Product::scale_b(int64_t column) const {
  return desc.scale_b == nullptr ? 1.0f : desc.scale_b[desc.has_vectors() ? column : 0];
}

double Product::flops() const {
  return 2.0 * static_cast<double>(d_layout.rows) * static_cast<double>(d_layout.columns) *
         static_cast<double>(inner());
}

void Product::compute() const {
  const bool tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<float> left = packed(a, a_layout, desc.trans_a == CUBLAS_OP_T, tf32);
  const std::vector<float> right = packed(b, b_layout, desc.trans_b != CUBLAS_OP_T, tf32);
  const int64_t depth = inner(), rows = d_layout.rows, columns = d_layout.columns;
  auto* const sums = static_cast<float*>(workspace);
  const auto part_sum = [&](int64_t part, int64_t row, int64_t column) {
    const int64_t begin = depth * part / parts, end = depth * (part + 1) / parts;
    return alpha * scale_a(row) * scale_b(column) *
           dot(left.data() + row * depth + begin, right.data() + column * depth + begin,
               end - begin);
  };
  for (int64_t part = 0; parts > 1 && part < parts; ++part) {
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows; ++row)
        sums[(part * columns + column) * rows + row] = part_sum(part, row, column);
    }
  }
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      float sum = parts == 1 ? part_sum(0, row, column) : 0;
      for (int64_t part = 0; parts > 1 && part < parts; ++part)
        sum += sums[(part * columns + column) * rows + row];
      if (beta != 0) sum += beta * element(c, c_layout, row, column);
      const int64_t at = column * d_layout.ld + row;
      if (d_layout.type == CUDA_R_32F) {
        static_cast<float*>(d)[at] = sum;
      } else {
        static_cast<uint16_t*>(d)[at] = to_16_bits(sum, d_layout.type);
      }
    }
  }
}

}  // namespace fake_cublas_lt
