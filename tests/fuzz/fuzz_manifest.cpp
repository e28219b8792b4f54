// Fuzzes manifest.json. A text must be rejected with std::invalid_argument, or be exactly the text
// that `manifest_json` writes for its content. Each input is also tried with a correct checksum,
// because mutations would otherwise never get past the checksum.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/json.h"
#include "storage/crc32c.h"
#include "storage/manifest.h"

namespace {

bool parses(std::string_view text) {
  try {
    if (fastsft::manifest_json(fastsft::parse_manifest(text, "manifest")) != text) std::abort();
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

std::string with_checksum(std::string_view text) {
  fastsft::Json json = fastsft::parse_json(text, "manifest");
  if (!json.is_object()) return std::string(text);
  json.erase("manifest_crc32c");
  const std::string content = json.dump();
  char checksum[9];
  std::snprintf(checksum, sizeof checksum, "%08x",
                fastsft::crc32c(std::as_bytes(std::span(content))));
  json["manifest_crc32c"] = checksum;
  return json.dump(2) + "\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parses(text);
  try {
    parses(with_checksum(text));
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
