#include "storage/safetensors_header.h"

#include <utility>

#include "core/error.h"
#include "storage/header_scanner.h"

namespace fastsft {
namespace {

constexpr size_t kMinEntry = 48;   // bytes of the shortest entry
constexpr size_t kMaxDepth = 127;  // of values under keys that we do not know, as the reference
constexpr const char* kMetadata = "__metadata__";

// {"name": {"dtype": ..., "shape": [...], "data_offsets": [...]}}
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where)
      : scan_(text, where), where_(where) {
    header_.tensors.reserve(text.size() / kMinEntry + 1);  // address space; pages come with use
  }

  SafetensorsHeader read() {
    scan_.read_object([&](std::string& name) {
      if (name == kMetadata) return read_metadata();
      header_.tensors.emplace_back().name = name;
      read_tensor(header_.tensors.back());
    });
    scan_.finish();
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw_invalid(where_, ": header: ", name.empty() ? "" : "\"" + name + "\": ", what);
  }
  void expect(char sign, const std::string& name, const char* what) {
    if (scan_.peek() != sign) refuse(name, concat("expected ", what, ", got ", scan_.kind()));
  }
  void read_metadata();
  void read_tensor(TensorEntry& tensor);
  void read_dtype(TensorEntry& tensor);
  void read_offsets(TensorEntry& tensor);
  template <typename Take>
  void read_numbers(const std::string& name, Take&& take);

  HeaderScanner scan_;
  const std::string& where_;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
};

void HeaderReader::read_metadata() {
  if (std::exchange(has_metadata_, true)) refuse(kMetadata, "duplicate key");
  if (scan_.peek() == 'n') return scan_.skip_literal();
  expect('{', kMetadata, "an object of strings");
  scan_.read_object([&](const std::string& key) {
    expect('"', kMetadata, "a string");
    std::string value;
    scan_.read_string(value);
    if (!header_.metadata.emplace(key, std::move(value)).second) {
      refuse(kMetadata, "duplicate key \"" + key + "\"");
    }
  });
}

void HeaderReader::read_tensor(TensorEntry& tensor) {
  expect('{', tensor.name, "an object with dtype, shape and data_offsets");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  scan_.read_object([&](const std::string& key) {
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
    } else if (!scan_.skip_value(kMaxDepth)) {
      refuse(tensor.name, "nested too deeply");
    }
  });
  if (!has_dtype || !has_shape || !has_offsets) {
    refuse(tensor.name, "expected dtype, shape and data_offsets, one is missing");
  }
}

void HeaderReader::read_dtype(TensorEntry& tensor) {
  expect('"', tensor.name, "a dtype");
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

// An array of 64-bit unsigned integers.
template <typename Take>
void HeaderReader::read_numbers(const std::string& name, Take&& take) {
  expect('[', name, "an array of numbers");
  scan_.take('[');
  if (scan_.take_if(']')) return;
  do {
    const char sign = scan_.peek();
    const bool is_number = sign >= '0' && sign <= '9';
    if (!is_number) refuse(name, concat("expected a number, got ", scan_.kind()));
    const auto value = scan_.read_number();
    if (!value) refuse(name, "expected a number, got one that is no 64-bit unsigned integer");
    take(*value);
  } while (scan_.take_if(','));
  scan_.take(']');
}

}  // namespace

SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  require(first != std::string_view::npos && text[first] == '{', where,
          ": the header is not a JSON object");
  return HeaderReader(text, where).read();
}

}  // namespace fastsft
