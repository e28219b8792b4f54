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
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorEntry* find(const std::string& name) const;  // nullptr when absent
  // Valid as long as this reader. The data may begin at any address.
  std::span<const std::byte> bytes(const TensorEntry& tensor) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

}  // namespace fastsft
