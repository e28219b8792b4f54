#include "storage/safetensors_writer.h"

#include <cstring>

#include "core/error.h"
#include "core/json.h"
#include "storage/safetensors_header.h"

namespace fastsft {

uint64_t TensorSpec::bytes() const {
  uint64_t elements = 1;
  for (uint64_t size : shape) {
    FASTSFT_ASSERT(!__builtin_mul_overflow(elements, size, &elements), name);
  }
  const auto result = dtype_bytes(dtype, elements);
  FASTSFT_ASSERT(result.has_value(), name);
  return *result;
}

std::string safetensors_prefix(const std::vector<TensorSpec>& specs, SafetensorsMetadata metadata) {
  metadata["format"] = "pt";
  // The header is appended as text, because a Json object would search all its keys at each
  // insertion.
  std::string header = "{\"__metadata__\":" + Json(metadata).dump();
  uint64_t begin = 0;
  for (const auto& spec : specs) {
    const uint64_t end = begin + spec.bytes();
    const Json entry = {
        {"dtype", dtype_name(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
    header += "," + Json(spec.name).dump() + ":" + entry.dump();
    begin = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  FASTSFT_ASSERT(length <= kMaxSafetensorsHeader);
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + header;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& file_system, const std::string& path,
                                     std::vector<TensorSpec> specs, SafetensorsMetadata metadata)
    : file_(file_system, path) {
  for (const auto& spec : specs) expected_ += spec.bytes();
  file_.write(safetensors_prefix(specs, std::move(metadata)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  FASTSFT_ASSERT(bytes.size() <= expected_ - written_);
  file_.write(bytes);
  written_ += bytes.size();
}

FileDigest SafetensorsWriter::finish() {
  FASTSFT_ASSERT(complete());
  return file_.finish();
}

}  // namespace fastsft
