#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/checksummed_file.h"

namespace fastsft {

inline constexpr const char* kManifest = "manifest.json";
inline constexpr int kManifestVersion = 1;

// What makes a directory a checkpoint: written last, it lists every file with size and CRC-32C.
// Names of files in folders have slashes.
struct Manifest {
  int64_t step = 0;
  int world_size = 1;
  std::string layout_hash;  // of the units of the engine that wrote it
  std::vector<FileDigest> files;
};

// The text ends with a checksum of itself, and only this exact text is a manifest.
std::string manifest_json(const Manifest& manifest);
// Throws std::invalid_argument when it is no manifest or damaged.
Manifest parse_manifest(std::string_view text, const std::string& where);
Manifest read_manifest(const std::string& directory, const std::string& name = kManifest);

enum class VerifyDepth { kSizes, kChecksums };

// Everything that is wrong with a checkpoint directory, one sentence each, naming the file; empty
// when it verifies. Unlisted files are ignored unless a loader could take them for weights.
std::vector<std::string> verify_directory(const std::string& directory,
                                          VerifyDepth depth = VerifyDepth::kChecksums);

}  // namespace fastsft
