#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "storage/mapped_file.h"
#include "storage/safetensors_header.h"

namespace fastsft {

// A safetensors file, mapped: a tensor's bytes are read from disk when they are touched.
class SafetensorsReader {
 public:
  // Throws std::invalid_argument when the file breaks the format.
  explicit SafetensorsReader(const std::string& path)
      : file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {
    for (const auto& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // nullptr when absent.
  const TensorEntry* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  // Valid as long as this reader. The data may begin at any address.
  std::span<const std::byte> bytes(const TensorEntry& tensor) const {
    return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
  }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

}  // namespace fastsft
