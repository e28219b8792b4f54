#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "core/whereabouts.h"
#include "shard/strategy.h"
#include "shard/unit_state.h"

namespace fastsft {

enum class UnitValues { kCompute, kMaster };

// Collective over the ranks of this copy: the unit's flat values without padding, whole on every
// rank, on the strategy's device. kCompute: what forward reads, in its dtype; kMaster: float32. The
// result is nobody else's memory.
inline at::Tensor whole_unit(Strategy& strategy, size_t unit, UnitValues values) {
  const Phase phase("gathering weights to send");
  const ParamUnit& layout = *strategy.states()[unit].unit;
  const auto computed =
      values == UnitValues::kCompute ? strategy.compute_range(unit) : std::nullopt;
  const at::Tensor range =
      computed ? *computed : read_master(strategy.states()[unit]).to(strategy.device());
  if (strategy.replicated()) return range.narrow(0, 0, layout.numel()).clone();
  Communicator& shards = strategy.shards();
  const at::Tensor whole = at::empty({range.numel() * shards.world_size()}, range.options());
  shards.all_gather(whole, range, layout.name())->wait();
  return whole.narrow(0, 0, layout.numel());
}

}  // namespace fastsft
