#pragma once

#include <string>
#include <vector>

#include "checkpoint/local_range.h"
#include "shard/strategy.h"
#include "storage/safetensors_reader.h"

namespace fastsft {

// One unit's entry in an optimizer file's metadata.
struct StoredUnit {
  std::string name;
  std::string hash;
  ElementRange range;
};

// An optimizer file's metadata.
struct StateFileLayout {
  int rank = 0;
  int world_size = 1;
  std::vector<StoredUnit> units;
};

std::string state_file_name(int rank, int world_size);
std::string layout_json(const StateFileLayout& layout);
// Throws std::invalid_argument if the file was not written by save_training_state.
StateFileLayout read_layout(const SafetensorsReader& reader);

// Returns a complete optimizer file set's paths. Throws std::invalid_argument if a file is
// missing, or if the directory holds sets with different rank counts.
std::vector<std::string> find_state_files(const std::string& directory);

// The part of the state that a rank writes: for every unit elements [begin, end), possibly none, as
// views into the tensors that hold them. Together, all ranks' parts contain every element once,
// even if a strategy replicates the state, and no padding. Values shared by neighbouring elements
// may occur in several parts.
struct StatePart {
  int rank = 0;  // the writing rank
  int world_size = 1;
  std::vector<UnitState> states;
};

// Returns this rank's part. Not collective.
StatePart part_to_write(Strategy& strategy, Communicator& all);

// A copy of the state in host memory (page-locked for a GPU) that does not change while training
// continues. Master weights are stored as float32, optimizer state in its own dtype. The first copy
// allocates the buffers, later copies reuse them.
class StateStaging {
 public:
  // Copies the state; the copy is complete on return. Nobody may still be reading the previous
  // copy.
  void copy(const StatePart& live);
  const StatePart& part() const { return part_; }

 private:
  StatePart part_;
};

// Returns how many bytes the buffers for `live` take.
int64_t staging_bytes(const StatePart& live);

}  // namespace fastsft
