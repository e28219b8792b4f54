#pragma once

#include <string>
#include <vector>

#include "checkpoint/local_range.h"
#include "shard/strategy.h"
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

// What this rank writes of the state: of every unit elements [begin, end), which may be none, as
// views of the tensors that hold them. The parts of all ranks are every element once (of values
// that neighbours share, every one at least once), also where a strategy replicates, and none of
// the padding.
struct StatePart {
  int rank = 0;  // of `world_size` ranks
  int world_size = 1;
  std::vector<UnitState> states;
};

// Local: no collectives.
StatePart part_to_write(Strategy& strategy, Communicator& all);

// A copy of a part of the state in host memory, page-locked with a GPU, which stays as it is
// while training goes on. Masters are float32 in it, optimizer state as it is held. The buffers are
// made by the first copy and used again.
class StateStaging {
 public:
  // Complete on return. Nobody may read an earlier copy any more.
  void copy(const StatePart& live);
  const StatePart& part() const { return part_; }

 private:
  StatePart part_;
};

// Bytes of the buffers for `live`.
int64_t staging_bytes(const StatePart& live);

}  // namespace fastsft
