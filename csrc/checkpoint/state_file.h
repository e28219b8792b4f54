#pragma once

#include <string>
#include <vector>

#include "checkpoint/local_range.h"
#include "storage/safetensors_reader.h"

namespace fastsft {

// What an optimizer file says about one unit.
struct StoredUnit {
  std::string name;
  std::string hash;
  ElementRange range;
};

// The metadata of an optimizer file.
struct StateFileLayout {
  int rank = 0;
  int world_size = 1;
  std::vector<StoredUnit> units;
};

std::string state_file_name(int rank, int world_size);
std::string layout_json(const StateFileLayout& layout);
// std::invalid_argument when the file was not written by save_training_state.
StateFileLayout read_layout(const SafetensorsReader& reader);

// The paths of a complete set of optimizer files; std::invalid_argument when one is missing or the
// directory holds sets of several sizes.
std::vector<std::string> find_state_files(const std::string& directory);

}  // namespace fastsft
