#include "checkpoint/gather.h"

#include <ATen/ops/empty.h>

#include "checkpoint/local_range.h"

namespace fastsft {

at::Tensor gather_master(const UnitState& state, Communicator& communicator) {
  const bool first = communicator.rank() == 0;
  if (owns_whole(state)) return first ? state.master.cpu() : at::Tensor();
  at::Tensor whole;
  if (first) {
    whole =
        at::empty({state.unit->padded_numel(communicator.world_size())}, state.master.options());
  }
  communicator.gather_to_first(whole, state.master);
  return first ? whole.cpu() : at::Tensor();
}

}  // namespace fastsft
