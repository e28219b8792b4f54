#include "checkpoint/float_conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "core/error.h"

namespace fastsft {
namespace {

template <typename Stored>
void read_as(const std::byte* from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<float>(value);
  }
}

template <typename Stored>
void write_as(std::span<const float> from, std::byte* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const Stored value(from[i]);
    std::memcpy(to + i * sizeof(Stored), &value, sizeof(Stored));
  }
}

}  // namespace

DType weight_dtype(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  throw_invalid("save_dtype: expected float32, bfloat16 or float16, got \"", name, "\"");
}

bool is_readable_weight(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF64;
}

void read_floats(DType dtype, const std::byte* from, std::span<float> to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to.data(), from, to.size_bytes());
      return;
    case DType::kF16:
      read_as<c10::Half>(from, to);
      return;
    case DType::kBF16:
      read_as<c10::BFloat16>(from, to);
      return;
    case DType::kF64:
      read_as<double>(from, to);
      return;
    default:
      throw_invalid("weights of type ", dtype_name(dtype), " cannot be read");
  }
}

std::vector<std::byte> write_floats(DType dtype, std::span<const float> from) {
  std::vector<std::byte> bytes(from.size() * static_cast<size_t>(dtype_bits(dtype)) / 8);
  switch (dtype) {
    case DType::kF32:
      std::memcpy(bytes.data(), from.data(), bytes.size());
      break;
    case DType::kBF16:
      write_as<c10::BFloat16>(from, bytes.data());
      break;
    case DType::kF16:
      for (const float value : from) {
        const bool fits =
            !std::isfinite(value) || std::isfinite(static_cast<float>(c10::Half(value)));
        require(fits, "the value ", value,
                " does not fit into float16; save with --save_dtype bfloat16 or float32");
      }
      write_as<c10::Half>(from, bytes.data());
      break;
    default:
      throw_invalid("weights cannot be saved as ", dtype_name(dtype));
  }
  return bytes;
}

}  // namespace fastsft
