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
  std::map<std::string, std::string> weight_map;  // tensor -> file in the same directory
  uint64_t total_parameters = 0;
  uint64_t total_size = 0;  // bytes
};

// The text of an index, its file names checked (docs/spec/reliability.md, section 5.2).
ModelIndex parse_model_index(std::string_view text, const std::string& where);
// Of `directory`/model.safetensors.index.json.
ModelIndex read_model_index(const std::string& directory);
// As transformers writes it: indent 2, sorted keys, newline.
std::string model_index_json(const ModelIndex& index);

// The safetensors files that hold a model's weights: the single file when it exists, as loaders
// choose it, else those of the index. Paths. std::invalid_argument when there is neither.
std::vector<std::string> weight_files(const std::string& directory);

// Names in `directory` of safetensors weight files and their index that are not in `keep`.
std::vector<std::string> stale_weight_files(FileSystem& file_system, const std::string& directory,
                                            const std::vector<std::string>& keep);

}  // namespace fastsft
