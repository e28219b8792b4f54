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

// bytes; the same limit as in the reference library
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // offset in bytes from the data's start
  uint64_t end = 0;

  uint64_t numel() const;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data in the file
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // offset in bytes from the file's start
};

// Parses and checks a whole file's header (docs/spec/reliability.md, section 5.1). On return every
// tensor's range is inside the file, without holes or overlaps, and matches its shape and dtype.
// Throws std::invalid_argument "<where>: <problem>".
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where);

// Parses a safetensors header's JSON text. Checks types and names but no ranges. The parser builds
// no JSON tree, so that a malicious header takes no more memory than its own size.
SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where);

}  // namespace fastsft
