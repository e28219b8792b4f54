#include "checkpoint/state_file.h"

#include <cstdio>
#include <regex>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "storage/file_system.h"

namespace fastsft {
namespace {

constexpr int kVersion = 1;
constexpr const char* kMetadataKey = "fastsft";

// The number of ranks that wrote an optimizer file; 0 for other files.
int world_size_of(const std::string& name) {
  static const std::regex pattern("optimizer-rank-(\\d{5})-of-(\\d{5})\\.safetensors");
  std::smatch match;
  return std::regex_match(name, match, pattern) ? std::stoi(match[2]) : 0;
}

}  // namespace

std::string state_file_name(int rank, int world_size) {
  char text[64];
  std::snprintf(text, sizeof text, "optimizer-rank-%05d-of-%05d.safetensors", rank, world_size);
  return text;
}

std::string layout_json(const StateFileLayout& layout) {
  Json units = Json::array();
  for (const auto& unit : layout.units) {
    units.push_back({{"name", unit.name},
                     {"hash", unit.hash},
                     {"begin", unit.range.begin},
                     {"end", unit.range.end}});
  }
  const Json json = {{"format_version", kVersion},
                     {"rank", layout.rank},
                     {"world_size", layout.world_size},
                     {"units", units}};
  return json.dump();
}

StateFileLayout read_layout(const SafetensorsReader& reader) {
  const std::string& where = reader.path();
  const auto text = reader.metadata().find(kMetadataKey);
  require(text != reader.metadata().end(), where,
          ": not an optimizer file of fastsft: its metadata lacks \"", kMetadataKey, "\"");
  try {
    const Json json = parse_json(text->second, where);
    const int version = json.at("format_version").get<int>();
    require(version == kVersion, where, ": format version ", version,
            "; this fastsft reads version ", kVersion);
    StateFileLayout layout{json.at("rank").get<int>(), json.at("world_size").get<int>(), {}};
    for (const auto& unit : json.at("units")) {
      const ElementRange range{unit.at("begin").get<int64_t>(), unit.at("end").get<int64_t>()};
      require(range.begin >= 0 && range.end >= range.begin, where, ": a range of elements from ",
              range.begin, " to ", range.end);
      layout.units.push_back(
          {unit.at("name").get<std::string>(), unit.at("hash").get<std::string>(), range});
    }
    return layout;
  } catch (const Json::exception& error) {
    throw_invalid(where, ": damaged metadata: ", error.what());
  }
}

std::vector<std::string> find_state_files(const std::string& directory) {
  std::set<int> sizes;
  std::set<std::string> names;
  for (const auto& entry : posix_file_system().list(directory)) {
    if (world_size_of(entry.name) == 0) continue;
    sizes.insert(world_size_of(entry.name));
    names.insert(entry.name);
  }
  require(sizes.size() == 1, directory, ": expected the optimizer files of one save, found ",
          sizes.empty() ? "none" : "those of several numbers of ranks",
          "; optimizer.pt of other programs is a pickle and is not read");
  std::vector<std::string> paths;
  for (int rank = 0; rank < *sizes.begin(); ++rank) {
    const std::string name = state_file_name(rank, *sizes.begin());
    require(names.contains(name), directory, ": ", name, " is missing");
    paths.push_back(join_path(directory, name));
  }
  return paths;
}

}  // namespace fastsft
