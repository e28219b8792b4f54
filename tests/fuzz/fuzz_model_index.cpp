// Fuzzes model.safetensors.index.json. A text must be rejected with std::invalid_argument, or all
// its file names must be plain names, and writing and parsing the index again must give the same
// index.
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "storage/model_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using fastsft::parse_model_index;
  fastsft::ModelIndex index;
  try {
    index = parse_model_index({reinterpret_cast<const char*>(data), size}, "index");
  } catch (const std::invalid_argument&) {
    return 0;
  }
  for (const auto& [tensor, file] : index.weight_map) {
    const bool plain = !file.empty() && file != ".." && file.find('/') == file.npos &&
                       file.find('\0') == file.npos && file.size() <= 255;
    if (!plain) std::abort();
  }
  const auto again = parse_model_index(fastsft::model_index_json(index), "again");
  if (again.weight_map != index.weight_map || again.total_size != index.total_size) std::abort();
  return 0;
}
