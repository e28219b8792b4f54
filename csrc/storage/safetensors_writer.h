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

// Returns the first bytes of a file with these tensors: the header's length and the header, padded
// to a multiple of 8 bytes. Adds {"format": "pt"} to `metadata`, which transformers requires.
std::string safetensors_prefix(const std::vector<TensorSpec>& specs,
                               SafetensorsMetadata metadata = {});

// A safetensors file that is written tensor by tensor, in the order of `specs`.
class SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& file_system, const std::string& path, std::vector<TensorSpec> specs,
                    SafetensorsMetadata metadata = {});

  // Appends bytes of the current tensor; a tensor may be written in several calls. Throws
  // std::logic_error if there are more bytes than the specs say.
  void write(std::span<const std::byte> bytes);
  bool complete() const { return written_ == expected_; }
  // Syncs and closes the file, and returns its digest. Durable on return. Throws std::logic_error
  // if bytes are missing.
  FileDigest finish();

 private:
  ChecksummedFile file_;
  uint64_t expected_ = 0;
  uint64_t written_ = 0;
};

}  // namespace fastsft
