#include "storage/model_index.h"

#include <algorithm>
#include <regex>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "storage/file_name.h"
#include "storage/mapped_file.h"

namespace fastsft {
namespace {

uint64_t total(const Json& json, const char* key) {
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || !metadata->is_object()) return 0;
  const auto value = metadata->find(key);
  // Some writers store a float here. The value is for information only, so 0 will do.
  return value != metadata->end() && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

}  // namespace

ModelIndex parse_model_index(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(), where,
          ": expected an object with \"weight_map\": {tensor: file}; copy or download it again");
  ModelIndex index;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    require(file.is_string(), where, ": weight_map: \"", tensor, "\": expected a file name");
    check_plain_file_name(file.get<std::string>(), where + ": weight_map: \"" + tensor + "\"");
    index.weight_map.emplace(tensor, file.get<std::string>());
  }
  index.total_parameters = total(json, "total_parameters");
  index.total_size = total(json, "total_size");
  return index;
}

ModelIndex read_model_index(const std::string& directory) {
  const std::string path = path_inside(directory, kWeightsIndex, directory);
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  return parse_model_index({text, file.bytes().size()}, path);
}

std::string model_index_json(const ModelIndex& index) {
  const Json json = {
      {"metadata",
       {{"total_parameters", index.total_parameters}, {"total_size", index.total_size}}},
      {"weight_map", index.weight_map}};
  return json.dump(2) + "\n";
}

std::vector<std::string> weight_files(const std::string& directory) {
  FileSystem& files = posix_file_system();
  if (files.exists(join_path(directory, kSingleWeights))) {
    return {path_inside(directory, kSingleWeights, directory)};
  }
  require(files.exists(join_path(directory, kWeightsIndex)), directory, ": expected ",
          kSingleWeights, " or ", kWeightsIndex, ", found neither");
  std::set<std::string> names;
  for (const auto& [tensor, file] : read_model_index(directory).weight_map) names.insert(file);
  std::vector<std::string> paths;
  for (const auto& name : names) {
    paths.push_back(path_inside(directory, name, join_path(directory, kWeightsIndex)));
  }
  return paths;
}

std::vector<std::string> stale_weight_files(FileSystem& file_system, const std::string& directory,
                                            const std::vector<std::string>& keep) {
  static const std::regex pattern(
      "model(-\\d{5}-of-\\d{5})?\\.safetensors|model\\.safetensors\\.index\\.json");
  std::vector<std::string> stale;
  for (const auto& entry : file_system.list(directory)) {
    const bool kept = std::find(keep.begin(), keep.end(), entry.name) != keep.end();
    if (!entry.is_directory && !kept && std::regex_match(entry.name, pattern)) {
      stale.push_back(entry.name);
    }
  }
  return stale;
}

}  // namespace fastsft
