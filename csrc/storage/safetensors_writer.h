#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "storage/checksummed_file.h"
#include "storage/dtype.h"

namespace fastsft {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;

  uint64_t bytes() const;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// What a file of these tensors begins with: the header, a multiple of 8 bytes long, and its length.
// `metadata` gets {"format": "pt"}, without which transformers refuses.
std::string safetensors_prefix(const std::vector<TensorSpec>& specs,
                               SafetensorsMetadata metadata = {});

// Writes a safetensors file tensor after tensor, in the order of `specs`.
class SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& file_system, const std::string& path, std::vector<TensorSpec> specs,
                    SafetensorsMetadata metadata = {});

  // The next tensor's bytes, whole or in pieces. std::logic_error when there are too many.
  void write(std::span<const std::byte> bytes);
  bool complete() const { return written_ == expected_; }
  // Durable on return. std::logic_error when bytes are missing.
  FileDigest finish();

 private:
  ChecksummedFile file_;
  uint64_t expected_ = 0;
  uint64_t written_ = 0;
};

}  // namespace fastsft
