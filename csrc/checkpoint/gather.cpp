#include "checkpoint/gather.h"

#include <ATen/ops/empty.h>

#include "checkpoint/host_copy.h"
#include "checkpoint/local_range.h"
#include "core/whereabouts.h"

namespace fastsft {

at::Tensor gather_master(const UnitState& state, Communicator& communicator) {
  const bool first = communicator.rank() == 0;
  if (owns_whole(state)) return first ? host_copy(state.master) : at::Tensor();
  const Phase phase("gathering the weights");
  at::Tensor whole;
  if (first) {
    whole =
        at::empty({state.unit->padded_numel(communicator.world_size())}, state.master.options());
  }
  communicator.gather_to_first(whole, state.master, state.unit->name());
  return first ? host_copy(whole) : at::Tensor();
}

}  // namespace fastsft
