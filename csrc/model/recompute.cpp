#include "model/recompute.h"

#include "core/error.h"

namespace fastsft {

Recompute parse_recompute(const std::string& name) {
  if (name == "none") return Recompute::kNone;
  if (name == "selective") return Recompute::kSelective;
  if (name == "gate_up") return Recompute::kGateUp;
  if (name == "block") return Recompute::kBlock;
  throw_invalid("unknown recompute policy \"", name, "\"; known: none, selective, gate_up, block");
}

}  // namespace fastsft
