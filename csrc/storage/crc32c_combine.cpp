#include "storage/crc32c.h"

namespace fastsft {
namespace {

// Polynomials over GF(2) modulo the Castagnoli polynomial, the highest power in the lowest bit.
constexpr uint32_t kPolynomial = 0x82F63B78;
constexpr uint32_t kOne = uint32_t{1} << 31;
constexpr uint32_t kX = kOne >> 1;

uint32_t multiply(uint32_t left, uint32_t right) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((left & bit) != 0) product ^= right;
    right = (right >> 1) ^ ((right & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

uint32_t power_of_x(uint64_t exponent) {
  uint32_t result = kOne;
  for (uint32_t square = kX; exponent != 0; exponent >>= 1, square = multiply(square, square)) {
    if ((exponent & 1) != 0) result = multiply(result, square);
  }
  return result;
}

}  // namespace

Crc32cCombiner::Crc32cCombiner(uint64_t second_size) : shift_(power_of_x(second_size)) {
  // x^(8 * size) as the eighth power: the exponent itself could overflow.
  for (int i = 0; i < 3; ++i) shift_ = multiply(shift_, shift_);
}

uint32_t Crc32cCombiner::operator()(uint32_t first, uint32_t second) const {
  return multiply(shift_, first) ^ second;
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  return Crc32cCombiner(second_size)(first, second);
}

}  // namespace fastsft
