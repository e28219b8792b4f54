#pragma once

#include <vector>

#include "shard/strategy.h"

namespace fastsft {

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

}  // namespace fastsft
