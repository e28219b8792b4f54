#include "storage/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace fastsft {
namespace {

std::optional<uint64_t> checked_numel(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (uint64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

uint64_t header_length(std::span<const std::byte> file, const std::string& where) {
  require(file.size() >= 8, where, ": expected at least 8 bytes, got ", file.size(),
          "; this is not a safetensors file, or it was cut");
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  require(length <= kMaxSafetensorsHeader, where, ": the header claims ", length,
          " bytes; at most ", kMaxSafetensorsHeader, " are allowed");
  require(length <= file.size() - 8, where, ": the header claims ", length, " bytes, the file has ",
          file.size(), "; it was cut, or is not a safetensors file");
  return length;
}

// Sorted by hash, which compares faster than names, and by name where hashes are the same.
void refuse_duplicates(const std::vector<TensorEntry>& tensors, const std::string& where) {
  std::vector<std::pair<size_t, const TensorEntry*>> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    names.emplace_back(std::hash<std::string_view>()(tensor.name), &tensor);
  }
  std::sort(names.begin(), names.end(), [](const auto& left, const auto& right) {
    return left.first != right.first ? left.first < right.first
                                     : left.second->name < right.second->name;
  });
  const auto duplicate =
      std::adjacent_find(names.begin(), names.end(), [](const auto& left, const auto& right) {
        return left.first == right.first && left.second->name == right.second->name;
      });
  require(duplicate == names.end(), where, ": two tensors are called \"",
          duplicate == names.end() ? "" : duplicate->second->name, "\"");
}

void check_size(const TensorEntry& tensor, const std::string& where) {
  const auto elements = checked_numel(tensor.shape);
  const auto bytes = elements ? dtype_bytes(tensor.dtype, *elements) : std::nullopt;
  require(bytes.has_value(), where, ": tensor \"", tensor.name,
          "\": its shape overflows or ends inside a byte");
  require(*bytes == tensor.end - tensor.begin, where, ": tensor \"", tensor.name,
          "\": its shape needs ", *bytes, " bytes, its range holds ", tensor.end - tensor.begin);
}

void check_ranges(const std::vector<TensorEntry>& tensors, uint64_t data_size,
                  const std::string& where) {
  uint64_t position = 0;
  for (const auto& tensor : tensors) {
    require(tensor.begin == position && tensor.end >= tensor.begin, where, ": tensor \"",
            tensor.name, "\": expected its data at byte ", position, ", got ", tensor.begin, " to ",
            tensor.end, "; ranges must follow one another without holes or overlaps");
    check_size(tensor, where);
    position = tensor.end;
  }
  require(position == data_size, where, ": the tensors end at byte ", position, ", the data at ",
          data_size, position > data_size ? "; the file was cut" : "; bytes are left over");
}

}  // namespace

uint64_t TensorEntry::numel() const { return checked_numel(shape).value_or(0); }

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where) {
  const uint64_t length = header_length(file, where);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  SafetensorsHeader header = parse_safetensors_json(text, where);
  header.data_begin = 8 + length;
  refuse_duplicates(header.tensors, where);
  const auto by_range = [](const TensorEntry& left, const TensorEntry& right) {
    return std::tie(left.begin, left.end) < std::tie(right.begin, right.end);
  };
  // A stable sort needs half as much memory again; writers write in order.
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), by_range)) {
    std::stable_sort(header.tensors.begin(), header.tensors.end(), by_range);
  }
  check_ranges(header.tensors, file.size() - header.data_begin, where);
  return header;
}

}  // namespace fastsft
