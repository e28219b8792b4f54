#include "values.h"

#include <algorithm>

namespace fake_cudnn {
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
T read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void write(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

float read_number(const char* at, cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return read<float>(at);
    case CUDNN_DATA_INT32:
      return static_cast<float>(read<int32_t>(at));
    case CUDNN_DATA_HALF:
      return from_half(read<uint16_t>(at));
    case CUDNN_DATA_BFLOAT16:
      return from_bfloat16(read<uint16_t>(at));
    default:
      throw std::runtime_error("a tensor of this type is not in memory");
  }
}

void write_number(char* at, cudnnDataType_t type, float value) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return write(at, value);
    case CUDNN_DATA_HALF:
      return write(at, to_half(value));
    case CUDNN_DATA_BFLOAT16:
      return write(at, to_bfloat16(value));
    default:
      throw std::runtime_error("a tensor of this type is not written to memory");
  }
}

// Calls `visit(offset in elements, head, row, column, token)` for all elements of an entry.
template <typename Visit>
void for_each_element(const Tensor& tensor, const Visit& visit) {
  const bool by_row = tensor.token_axis() == 2;
  for (int64_t head = 0; head < tensor.dims[1]; ++head) {
    for (int64_t row = 0; row < tensor.dims[2]; ++row) {
      for (int64_t column = 0; column < tensor.dims[3]; ++column) {
        visit(head * tensor.strides[1] + row * tensor.strides[2] + column * tensor.strides[3], head,
              row, column, by_row ? row : column);
      }
    }
  }
}

}  // namespace

float rounded(float value, cudnnDataType_t dtype) {
  if (dtype == CUDNN_DATA_HALF) return from_half(to_half(value));
  if (dtype == CUDNN_DATA_BFLOAT16) return from_bfloat16(to_bfloat16(value));
  return value;
}

int32_t Memory::offset(int64_t uid, int64_t entry) {
  const auto* const list = static_cast<const int32_t*>(pointers_.at(uid));
  touched_.push_back(fake_device::reads(list + entry, sizeof *list));
  return list[entry];
}

int64_t Memory::tokens(const Tensor& tensor, int64_t entry) {
  const int64_t begin = offset(tensor.offsets, entry), end = offset(tensor.offsets, entry + 1);
  return (end - begin) / tensor.strides[tensor.token_axis()];
}

Memory::Place Memory::place(const Tensor& tensor, int64_t entry, bool write) {
  auto* const base = static_cast<char*>(pointers_.at(tensor.uid));
  if (tensor.by_value) return {base, 1};
  const auto width = static_cast<int64_t>(bytes_of(tensor.dtype));
  const size_t axis = tensor.token_axis();
  int64_t begin = (tensor.dims[0] == 1 ? 0 : entry) * tensor.strides[0], tokens = tensor.dims[axis];
  if (tensor.offsets >= 0) {
    begin = offset(tensor.offsets, entry);
    tokens = std::min(tokens, this->tokens(tensor, entry));
  }
  Tensor present = tensor;
  present.dims[axis] = tokens;
  int64_t last = 0;
  for (size_t i = 1; i < 4; ++i) last += (present.dims[i] - 1) * tensor.strides[i];
  char* const data = base + begin * width;
  if (tokens > 0) {
    const auto first = reinterpret_cast<uintptr_t>(data);
    const auto counted = static_cast<uint64_t>(present.elements() / tensor.dims[0] * width);
    touched_.push_back({first, first + static_cast<uint64_t>((last + 1) * width), write, counted});
  }
  return {data, tokens};
}

Values Memory::load(const Tensor& tensor, int64_t entry) {
  Values values(tensor);
  const Place from = place(tensor, entry, false);
  const auto width = static_cast<int64_t>(bytes_of(tensor.dtype));
  for_each_element(
      tensor, [&](int64_t offset, int64_t head, int64_t row, int64_t column, int64_t token) {
        values.at(head, row, column) = token < from.tokens
                                           ? read_number(from.data + offset * width, tensor.dtype)
                                           : std::numeric_limits<float>::quiet_NaN();
      });
  return values;
}

void Memory::store(const Tensor& tensor, int64_t entry, const Values& values) {
  const Place to = place(tensor, entry, true);
  const auto width = static_cast<int64_t>(bytes_of(tensor.dtype));
  for_each_element(
      tensor, [&](int64_t offset, int64_t head, int64_t row, int64_t column, int64_t token) {
        if (token < to.tokens) {
          write_number(to.data + offset * width, tensor.dtype, values.at(head, row, column));
        }
      });
}

}  // namespace fake_cudnn
