#pragma once

#include "checkpoint/state_part.h"

namespace fastsft {

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
