#include "checkpoint/gather.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "checkpoint/host_values.h"
#include "checkpoint/local_range.h"
#include "core/rank_status.h"
#include "shard/unit_state.h"

namespace fastsft {

at::Tensor gather_range(const UnitState& state, const at::Tensor& range, Communicator& shards,
                        at::Device device, Readers readers) {
  const bool reads = readers == Readers::kAll || shards.rank() == 0;
  if (owns_whole(state)) return reads ? host_copy(range) : at::Tensor();
  const ScopedPhase phase("gathering the state");
  const at::Tensor part = range.to(device);
  at::Tensor whole;
  if (reads) whole = at::empty({state.unit->padded_numel(shards.world_size())}, part.options());
  if (readers == Readers::kAll) {
    shards.all_gather(whole, part, state.unit->name())->wait();
  } else {
    shards.gather_to_rank0(whole, part, state.unit->name());
  }
  return reads ? host_copy(whole) : at::Tensor();
}

at::Tensor gather_master(const UnitState& state, Communicator& shards, at::Device device,
                         Readers readers) {
  if (owns_whole(state) && readers == Readers::kFirst && shards.rank() != 0) return {};
  return gather_range(state, read_master(state), shards, device, readers);
}

namespace {

ElementRange range_of_rank(const UnitState& state, int rank) {
  const int64_t size = state.end - state.begin;
  return {size * rank, size * (rank + 1)};
}

}  // namespace

at::Tensor gather_values(const UnitState& state, size_t index, Communicator& shards,
                         at::Device device, Readers readers) {
  const StateSpec& spec = state.kept()[index];
  const at::Tensor& held = state.values[index];
  const bool reads = readers == Readers::kAll || shards.rank() == 0;
  if (!spec.by_ranges() || owns_whole(state)) return reads ? host_copy(held) : at::Tensor();
  const ElementRange unit{0, state.unit->padded_numel(shards.world_size())};
  int64_t most = 0;
  for (int rank = 0; rank < shards.world_size(); ++rank) {
    most = std::max(most, spec.count(range_of_rank(state, rank)));
  }
  const ScopedPhase phase("gathering the state");
  const at::Tensor part = at::zeros({most}, held.options().device(device));
  part.narrow(0, 0, held.numel()).copy_(held);
  at::Tensor parts;
  if (reads) parts = at::empty({most * shards.world_size()}, part.options());
  if (readers == Readers::kAll)
    shards.all_gather(parts, part, state.unit->name())->wait();
  else
    shards.gather_to_rank0(parts, part, state.unit->name());
  if (!reads) return {};
  const at::Tensor whole = host_buffer(spec.count(unit), device, spec.dtype);
  for (int rank = 0; rank < shards.world_size(); ++rank) {
    const ElementRange range = range_of_rank(state, rank);
    const int64_t count = spec.count(range);
    if (count == 0) continue;
    whole.narrow(0, spec.offset(unit, range), count).copy_(parts.narrow(0, most * rank, count));
  }
  return whole;
}

}  // namespace fastsft
