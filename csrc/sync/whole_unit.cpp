#include "sync/whole_unit.h"

#include <ATen/ops/empty.h>

#include "core/whereabouts.h"
#include "shard/master_weights.h"

namespace fastsft {
namespace {

at::Tensor own_range(Strategy& strategy, size_t unit, UnitValues values) {
  if (values == UnitValues::kCompute) {
    if (const auto range = strategy.compute_range(unit)) return *range;
  }
  return read_master(strategy.states()[unit]).to(strategy.device());
}

}  // namespace

at::Tensor whole_unit(Strategy& strategy, size_t unit, UnitValues values) {
  const Phase phase("gathering weights to send");
  const ParamUnit& layout = *strategy.states()[unit].unit;
  const at::Tensor range = own_range(strategy, unit, values);
  if (strategy.replicated()) return range.narrow(0, 0, layout.numel()).clone();
  Communicator& shards = strategy.shards();
  const at::Tensor whole = at::empty({range.numel() * shards.world_size()}, range.options());
  shards.all_gather(whole, range, layout.name())->wait();
  return whole.narrow(0, 0, layout.numel());
}

}  // namespace fastsft
