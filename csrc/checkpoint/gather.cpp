#include "checkpoint/gather.h"

#include <ATen/ops/empty.h>

#include "checkpoint/host_copy.h"
#include "checkpoint/local_range.h"
#include "core/whereabouts.h"
#include "shard/master_weights.h"

namespace fastsft {

at::Tensor gather_range(const UnitState& state, const at::Tensor& range, Communicator& shards,
                        at::Device device, Readers readers) {
  const bool reads = readers == Readers::kAll || shards.rank() == 0;
  if (owns_whole(state)) return reads ? host_copy(range) : at::Tensor();
  const Phase phase("gathering the state");
  const at::Tensor part = range.to(device);
  at::Tensor whole;
  if (reads) whole = at::empty({state.unit->padded_numel(shards.world_size())}, part.options());
  if (readers == Readers::kAll) {
    shards.all_gather(whole, part, state.unit->name())->wait();
  } else {
    shards.gather_to_first(whole, part, state.unit->name());
  }
  return reads ? host_copy(whole) : at::Tensor();
}

at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device,
                         Readers readers) {
  if (owns_whole(state) && readers == Readers::kFirst && shards.rank() != 0) return {};
  return gather_range(state, read_master(state), shards, device, readers);
}

}  // namespace fastsft
