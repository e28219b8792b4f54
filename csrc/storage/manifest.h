#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/checksummed_file.h"

namespace fastsft {

inline constexpr const char* kManifest = "manifest.json";
inline constexpr int kManifestVersion = 1;

// The file that makes a directory a checkpoint. It is written last and lists every file with its
// size and CRC-32C. Names of files in folders contain slashes.
struct Manifest {
  int64_t step = 0;
  int world_size = 1;
  std::string layout_hash;  // unit layout hash from the engine that wrote the checkpoint
  std::vector<FileDigest> files;
};

// Returns the manifest's JSON text. Its last entry is a checksum over the other entries; a text
// that differs in one byte is rejected.
std::string manifest_json(const Manifest& manifest);
// Throws std::invalid_argument if `text` is not a manifest or is damaged.
Manifest parse_manifest(std::string_view text, const std::string& where);
Manifest read_manifest(const std::string& directory, const std::string& name = kManifest);

enum class VerifyDepth { kSizes, kChecksums };

// Returns a sentence for each problem in a checkpoint directory, with the file's name; empty if the
// directory verifies. Unlisted files are ignored unless a loader could read them as weights.
std::vector<std::string> verify_directory(const std::string& directory,
                                          VerifyDepth depth = VerifyDepth::kChecksums);

}  // namespace fastsft
