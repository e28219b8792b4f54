#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "storage/mapped_file.h"
#include "storage/safetensors_header.h"

namespace fastsft {

// A memory-mapped safetensors file. A tensor's bytes are read from disk on first access.
class SafetensorsReader {
 public:
  // Throws std::invalid_argument if the file violates the format.
  explicit SafetensorsReader(const std::string& path)
      : file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {
    for (const auto& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Returns nullptr if the file has no such tensor.
  const TensorEntry* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  // Returns a tensor's bytes. They are valid while this reader exists, and may be unaligned.
  std::span<const std::byte> bytes(const TensorEntry& tensor) const {
    return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
  }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

}  // namespace fastsft
