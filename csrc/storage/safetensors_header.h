#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/dtype.h"

namespace fastsft {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes, as the reference library

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;

  uint64_t numel() const;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // bytes from the start of the file
};

// Reads and checks the header of a whole file (docs/spec/reliability.md, section 5.1): after it,
// every range is inside the file, without holes or overlaps, and agrees with its shape and type.
// Throws std::invalid_argument "<where>: <what is wrong>".
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where);

// The JSON of a safetensors header as it is: types and names are checked, ranges are not.
// Event by event, so that a hostile header costs no more than its own size.
SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where);

}  // namespace fastsft
