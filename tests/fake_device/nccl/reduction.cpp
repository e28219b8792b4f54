#include "reduction.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fake_device {
namespace {

float from_bfloat16(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }
uint16_t to_bfloat16(float value) {
  if (value != value) return 0x7fff;
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
float from_half(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
uint16_t to_half(float value) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value)); }

template <typename T>
T combined(T x, T y, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(x * y);
    case ncclMax:
      return std::max(x, y);
    case ncclMin:
      return std::min(x, y);
    default:
      return static_cast<T>(x + y);
  }
}

template <typename T>
void reduce_numbers(char* sum, const char* other, size_t count, ncclRedOp_t op) {
  auto* a = reinterpret_cast<T*>(sum);
  const auto* b = reinterpret_cast<const T*>(other);
  for (size_t i = 0; i < count; ++i) a[i] = combined(a[i], b[i], op);
}

void reduce_16_bit_floats(char* sum, const char* other, size_t count, ncclRedOp_t op,
                          float (*from)(uint16_t), uint16_t (*to)(float)) {
  auto* a = reinterpret_cast<uint16_t*>(sum);
  const auto* b = reinterpret_cast<const uint16_t*>(other);
  for (size_t i = 0; i < count; ++i) a[i] = to(combined(from(a[i]), from(b[i]), op));
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      throw std::runtime_error("fake NCCL: data type " + std::to_string(type) +
                               " is not implemented");
  }
}

void reduce_into(char* sum, const char* other, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return reduce_numbers<int8_t>(sum, other, count, op);
    case ncclUint8:
      return reduce_numbers<uint8_t>(sum, other, count, op);
    case ncclInt32:
      return reduce_numbers<int32_t>(sum, other, count, op);
    case ncclUint32:
      return reduce_numbers<uint32_t>(sum, other, count, op);
    case ncclInt64:
      return reduce_numbers<int64_t>(sum, other, count, op);
    case ncclUint64:
      return reduce_numbers<uint64_t>(sum, other, count, op);
    case ncclFloat32:
      return reduce_numbers<float>(sum, other, count, op);
    case ncclFloat64:
      return reduce_numbers<double>(sum, other, count, op);
    case ncclBfloat16:
      return reduce_16_bit_floats(sum, other, count, op, from_bfloat16, to_bfloat16);
    case ncclFloat16:
      return reduce_16_bit_floats(sum, other, count, op, from_half, to_half);
    default:
      throw std::runtime_error("fake NCCL: a reduction of this type is not implemented");
  }
}

void divide(char* data, size_t count, ncclDataType_t type, int by) {
  for (size_t i = 0; i < count; ++i) {
    if (type == ncclFloat32) {
      reinterpret_cast<float*>(data)[i] /= static_cast<float>(by);
    } else if (type == ncclFloat64) {
      reinterpret_cast<double*>(data)[i] /= by;
    } else if (type == ncclBfloat16) {
      auto& value = reinterpret_cast<uint16_t*>(data)[i];
      value = to_bfloat16(from_bfloat16(value) / static_cast<float>(by));
    } else {
      throw std::runtime_error("fake NCCL: an average of this type is not implemented");
    }
  }
}

}  // namespace fake_device
