#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fastsft {

// Element types of the safetensors format.
enum class DType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

int dtype_bits(DType dtype);
std::string_view dtype_name(DType dtype);  // for example "BF16"
std::optional<DType> find_dtype(std::string_view name);

// Returns elements x bits / 8, or nullopt if the product overflows or is not a whole number of
// bytes.
std::optional<uint64_t> dtype_bytes(DType dtype, uint64_t elements);

}  // namespace fastsft
