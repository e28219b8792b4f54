// Fuzzes safetensors files. A file must be rejected with std::invalid_argument, or all its tensors
// must lie inside the file without gaps, with the sizes that their shapes and dtypes need.
#include <cstdlib>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include "storage/safetensors_header.h"

namespace {

void check(bool ok) {
  if (!ok) std::abort();
}

void check_promises(const fastsft::SafetensorsHeader& header, size_t size) {
  check(header.data_begin >= 8 && header.data_begin <= size);
  uint64_t at = 0;
  std::set<std::string> names;
  for (const fastsft::TensorEntry& tensor : header.tensors) {
    check(tensor.begin == at && tensor.end >= at);
    check(fastsft::dtype_bytes(tensor.dtype, tensor.numel()) == tensor.end - tensor.begin);
    check(names.insert(tensor.name).second);
    at = tensor.end;
  }
  check(at == size - header.data_begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check_promises(
        fastsft::parse_safetensors_header(std::as_bytes(std::span(data, size)), "x.safetensors"),
        size);
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
