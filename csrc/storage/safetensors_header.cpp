#include "storage/safetensors_header.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/json_scanner.h"

namespace fastsft {
namespace {

constexpr const char* kAgain = ": copy or download it again";

std::optional<uint64_t> checked_numel(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (uint64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

uint64_t header_length(std::span<const std::byte> file, const std::string& where) {
  require(file.size() >= 8, where, ": expected at least 8 bytes, got ", file.size(),
          "; this is not a safetensors file, or it was cut", kAgain);
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  require(length <= kMaxSafetensorsHeader, where, ": the header claims ", length,
          " bytes; at most ", kMaxSafetensorsHeader, " are allowed; this is not a safetensors file",
          kAgain);
  require(length <= file.size() - 8, where, ": the header claims ", length, " bytes, the file has ",
          file.size(), "; it was cut, or is not a safetensors file", kAgain);
  return length;
}

// Throws std::invalid_argument if two tensors have the same name. Sorts by hash, which compares
// faster than names, and by name if hashes are equal.
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
          data_size, position > data_size ? "; the file was cut" : "; bytes are left over", kAgain);
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
  // std::stable_sort needs extra memory, and most writers store tensors in order.
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), by_range)) {
    std::stable_sort(header.tensors.begin(), header.tensors.end(), by_range);
  }
  check_ranges(header.tensors, file.size() - header.data_begin, where);
  return header;
}

namespace {

constexpr size_t kMinEntry = 48;  // shortest possible entry, in bytes
// nesting limit for values of unknown keys, as in the reference library
constexpr size_t kMaxDepth = 127;
constexpr const char* kMetadata = "__metadata__";

// Returns how an error message names the next value.
const char* describe_next(JsonScanner& scan) {
  switch (scan.peek()) {
    case ValueKind::kNumber:
      return scan.current() == '-' ? "a negative number" : "a number";
    case ValueKind::kString:
      return "a string";
    case ValueKind::kArray:
      return "an array";
    case ValueKind::kTrue:
    case ValueKind::kFalse:
      return "a boolean";
    default:
      return describe(scan.peek());
  }
}

// Parser of a header: {"name": {"dtype": ..., "shape": [...], "data_offsets": [...]}}.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where)
      : scan_(text, 0, 0, "the header", JsonRules::kStrict, 2 + kMaxDepth), where_(where) {
    // reserves address space only; pages are allocated on use
    header_.tensors.reserve(text.size() / kMinEntry + 1);
  }

  SafetensorsHeader read() {
    try {
      read_object([&](const std::string& name) {
        if (name == kMetadata) return read_metadata();
        header_.tensors.emplace_back().name = name;
        read_tensor(header_.tensors.back());
      });
      scan_.expect_end();
    } catch (const JsonFault& fault) {
      throw_invalid(where_, ": the header is not JSON at byte ", fault.byte() + 1,
                    "; copy or download it again");
    }
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw_invalid(where_, ": header: ", name.empty() ? "" : "\"" + name + "\": ", what);
  }
  void expect(ValueKind kind, const std::string& name, const char* what) {
    if (scan_.peek() != kind) {
      refuse(name, concat("expected ", what, ", got ", describe_next(scan_)));
    }
  }
  // Calls `member(key)` to read each key's value.
  template <typename Member>
  void read_object(Member&& member) {
    scan_.peek();
    scan_.enter_object();
    for (std::string key; scan_.next_key(key);) member(key);
  }
  void skip_value(const std::string& name) try { scan_.skip(); } catch (const JsonFault& fault) {
    if (fault.kind() == JsonFault::Kind::kDepth) refuse(name, "nested too deeply");
    throw;
  }
  void read_metadata();
  void read_tensor(TensorEntry& tensor);
  void read_dtype(TensorEntry& tensor);
  void read_offsets(TensorEntry& tensor);
  template <typename Take>
  void read_numbers(const std::string& name, Take&& take);

  JsonScanner scan_;
  const std::string& where_;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
};

void HeaderReader::read_metadata() {
  if (std::exchange(has_metadata_, true)) refuse(kMetadata, "duplicate key");
  if (scan_.peek() == ValueKind::kNull) return scan_.skip();
  expect(ValueKind::kObject, kMetadata, "an object of strings");
  read_object([&](const std::string& key) {
    expect(ValueKind::kString, kMetadata, "a string");
    std::string value;
    scan_.read_string(value);
    if (!header_.metadata.emplace(key, std::move(value)).second) {
      refuse(kMetadata, "duplicate key \"" + key + "\"");
    }
  });
}

void HeaderReader::read_tensor(TensorEntry& tensor) {
  expect(ValueKind::kObject, tensor.name, "an object with dtype, shape and data_offsets");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  read_object([&](const std::string& key) {
    const auto first = [&](bool& seen) {
      if (std::exchange(seen, true)) refuse(tensor.name, "duplicate key \"" + key + "\"");
    };
    if (key == "dtype") {
      first(has_dtype);
      read_dtype(tensor);
    } else if (key == "shape") {
      first(has_shape);
      read_numbers(tensor.name, [&](uint64_t size) { tensor.shape.push_back(size); });
    } else if (key == "data_offsets") {
      first(has_offsets);
      read_offsets(tensor);
    } else {
      skip_value(tensor.name);
    }
  });
  if (!has_dtype || !has_shape || !has_offsets) {
    refuse(tensor.name, "expected dtype, shape and data_offsets, one is missing");
  }
}

void HeaderReader::read_dtype(TensorEntry& tensor) {
  expect(ValueKind::kString, tensor.name, "a dtype");
  std::string name;
  scan_.read_string(name);
  const auto dtype = find_dtype(name);
  if (!dtype) refuse(tensor.name, "unknown dtype \"" + name + "\"");
  tensor.dtype = *dtype;
}

void HeaderReader::read_offsets(TensorEntry& tensor) {
  size_t count = 0;
  read_numbers(tensor.name, [&](uint64_t offset) {
    if (count < 2) (count == 0 ? tensor.begin : tensor.end) = offset;
    ++count;
  });
  if (count != 2) refuse(tensor.name, "expected data_offsets [begin, end]");
}

// Reads an array of 64-bit unsigned integers and passes each to `take`.
template <typename Take>
void HeaderReader::read_numbers(const std::string& name, Take&& take) {
  expect(ValueKind::kArray, name, "an array of numbers");
  for (scan_.enter_array(); scan_.next_item();) {
    const bool is_number = scan_.peek() == ValueKind::kNumber && scan_.current() != '-';
    if (!is_number) refuse(name, concat("expected a number, got ", describe_next(scan_)));
    const std::string_view digits = scan_.read_raw();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
    if (error != std::errc() || end != digits.end()) {
      refuse(name, "expected a number, got one that is no 64-bit unsigned integer");
    }
    take(value);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  require(first != std::string_view::npos && text[first] == '{', where,
          ": the header is not a JSON object");
  return HeaderReader(text, where).read();
}

}  // namespace fastsft
