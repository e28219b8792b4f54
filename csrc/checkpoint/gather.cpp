#include "checkpoint/gather.h"

#include <ATen/ops/empty.h>

#include "checkpoint/host_copy.h"
#include "checkpoint/local_range.h"
#include "core/whereabouts.h"
#include "shard/master_weights.h"

namespace fastsft {

at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device) {
  const bool first = shards.rank() == 0;
  if (owns_whole(state)) return first ? host_copy(read_master(state)) : at::Tensor();
  const Phase phase("gathering the weights");
  const at::Tensor range = read_master(state).to(device);
  at::Tensor whole;
  if (first) {
    whole = at::empty({state.unit->padded_numel(shards.world_size())}, range.options());
  }
  shards.gather_to_first(whole, range, state.unit->name());
  return first ? host_copy(whole) : at::Tensor();
}

}  // namespace fastsft
