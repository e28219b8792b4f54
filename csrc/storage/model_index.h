#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

inline constexpr const char* kSingleWeights = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

struct ModelIndex {
  std::map<std::string, std::string> weight_map;  // tensor name -> file in the same directory
  uint64_t total_parameters = 0;
  uint64_t total_size = 0;  // bytes
};

// Parses an index's JSON text and checks its file names (docs/spec/reliability.md, section 5.2).
ModelIndex parse_model_index(std::string_view text, const std::string& where);
// Reads `directory`/model.safetensors.index.json.
ModelIndex read_model_index(const std::string& directory);
// Returns the index's JSON text as transformers writes it: indent 2, sorted keys, newline at the
// end.
std::string model_index_json(const ModelIndex& index);

// Returns the paths to a model's safetensors files: the single file if it exists, as loaders prefer
// it, otherwise the index's files. Throws std::invalid_argument if there is neither.
std::vector<std::string> weight_files(const std::string& directory);

// Returns the weight files and index files in `directory` that are not in `keep`.
std::vector<std::string> stale_weight_files(FileSystem& file_system, const std::string& directory,
                                            const std::vector<std::string>& keep);

}  // namespace fastsft
