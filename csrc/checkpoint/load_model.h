#pragma once

#include <string>
#include <vector>

#include "shard/strategy.h"
#include "shard/unit_state.h"

namespace fastsft {

// Collective: reads the safetensors weights of a Hugging Face directory into the master weights.
// Files are mapped, and each rank touches only the bytes of its own ranges. All ranks throw when
// one fails. Adapters stay as they are. Returns sentences that the user should see, such as a head
// that a tied model ignores.
std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory);
// The same into `units`, on this rank alone.
std::vector<std::string> read_model(std::vector<UnitState> units, const std::string& directory);

}  // namespace fastsft
