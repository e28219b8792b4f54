#include "storage/safetensors_reader.h"

namespace fastsft {

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {
  for (const auto& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
}

const TensorEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::span<const std::byte> SafetensorsReader::bytes(const TensorEntry& tensor) const {
  return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
}

}  // namespace fastsft
