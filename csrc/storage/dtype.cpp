#include "storage/dtype.h"

#include <array>

namespace fastsft {
namespace {

struct Entry {
  std::string_view name;
  int bits;
};

// Entries in the enumeration's order.
constexpr std::array<Entry, 22> kEntries = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const Entry& entry(DType dtype) { return kEntries.at(static_cast<size_t>(dtype)); }

}  // namespace

int dtype_bits(DType dtype) { return entry(dtype).bits; }

std::string_view dtype_name(DType dtype) { return entry(dtype).name; }

std::optional<DType> find_dtype(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<uint64_t> dtype_bytes(DType dtype, uint64_t elements) {
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(dtype)), &bits)) {
    return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace fastsft
