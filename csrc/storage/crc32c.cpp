#include "storage/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace fastsft {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// Tables of the slicing-by-8 algorithm: table k is the checksum of a byte followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < 8; ++k) {
      const uint32_t value = tables[k - 1][byte];
      tables[k][byte] = (value >> 8) ^ tables[0][value & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();
static_assert(std::endian::native == std::endian::little);

uint64_t load64(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint32_t update_portable(uint32_t state, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load64(data) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; size > 0; ++data, --size) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*data)) & 255];
  }
  return state;
}

using Update = uint32_t (*)(uint32_t, const std::byte*, size_t);

#if defined(__x86_64__)
// bytes of each of the three ranges that `checksum_three` reads at the same time
constexpr size_t kStretch = 16 << 10;

__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t state, const std::byte* data,
                                                        size_t size) {
  uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load64(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, static_cast<uint8_t>(*data));
  return state;
}

// Returns the checksum of 3 * kStretch bytes, continued from `previous`. Three ranges are processed
// side by side and their checksums are combined, because the CRC instruction has a latency of three
// cycles but a new one can start in each cycle.
__attribute__((target("sse4.2"))) uint32_t checksum_three(uint32_t previous,
                                                          const std::byte* data) {
  static const Crc32cCombiner combine(kStretch);
  uint64_t first = static_cast<uint32_t>(~previous), second = ~uint32_t{0}, third = ~uint32_t{0};
  for (size_t i = 0; i < kStretch; i += 8) {
    first = _mm_crc32_u64(first, load64(data + i));
    second = _mm_crc32_u64(second, load64(data + kStretch + i));
    third = _mm_crc32_u64(third, load64(data + 2 * kStretch + i));
  }
  const auto finish = [](uint64_t state) { return ~static_cast<uint32_t>(state); };
  return combine(combine(finish(first), finish(second)), finish(third));
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

// Computes the checksum of as many triples of ranges as `bytes` holds, and removes them from the
// front of `bytes`.
uint32_t checksum_stretches(std::span<const std::byte>& bytes, uint32_t previous) {
  for (; has_instruction() && bytes.size() >= 3 * kStretch; bytes = bytes.subspan(3 * kStretch)) {
    previous = checksum_three(previous, bytes.data());
  }
  return previous;
}

Update choose_update() { return has_instruction() ? update_sse42 : update_portable; }
#else
uint32_t checksum_stretches(std::span<const std::byte>&, uint32_t previous) { return previous; }

Update choose_update() { return update_portable; }
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  static const Update update = choose_update();
  previous = checksum_stretches(bytes, previous);
  return ~update(~previous, bytes.data(), bytes.size());
}

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous) {
  return ~update_portable(~previous, bytes.data(), bytes.size());
}

}  // namespace fastsft

namespace fastsft {
namespace {

// Arithmetic on polynomials over GF(2) modulo the Castagnoli polynomial. The lowest bit is the
// coefficient of the highest power.
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
  // Computes x^(8 * size) by squaring x^size three times, because 8 * size could overflow.
  for (int i = 0; i < 3; ++i) shift_ = multiply(shift_, shift_);
}

uint32_t Crc32cCombiner::operator()(uint32_t first, uint32_t second) const {
  return multiply(shift_, first) ^ second;
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  return Crc32cCombiner(second_size)(first, second);
}

}  // namespace fastsft
