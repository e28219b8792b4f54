#include "checkpoint/state_part.h"

#include <algorithm>
#include <span>

#include "checkpoint/local_range.h"

namespace fastsft {
namespace {

// Part `index` of `count`, cut at multiples of kAlignment.
ElementRange part_of(const ElementRange& range, int64_t index, int64_t count) {
  const int64_t step = (range.size() + count * kAlignment - 1) / (count * kAlignment) * kAlignment;
  const int64_t begin = std::min(range.begin + index * step, range.end);
  return {begin, std::min(begin + step, range.end)};
}

UnitState narrowed(const UnitState& state, const ElementRange& range) {
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, range.begin - state.begin, range.size()) : tensor;
  };
  UnitState part{.unit = state.unit,
                 .begin = range.begin,
                 .end = range.end,
                 .master = cut(state.master),
                 .high = cut(state.high),
                 .specs = state.specs};
  for (size_t i = 0; i < state.values.size(); ++i) {
    const StateSpec& spec = state.kept()[i];
    const int64_t first = spec.by_ranges() ? spec.offset(state.range(), range) : 0;
    part.values.push_back(state.values[i].narrow(0, first, spec.stored(range)));
  }
  return part;
}

}  // namespace

StatePart part_to_write(Strategy& strategy, Communicator& all) {
  const Communicator& shards = strategy.shards();
  const std::span<const UnitState> units = strategy.states();
  const bool replicated =
      shards.world_size() > 1 && std::all_of(units.begin(), units.end(), owns_whole);
  // Those that hold the same elements divide them.
  const int64_t among = replicated ? shards.world_size() : 1;
  const int64_t index = strategy.copy() * among + (replicated ? shards.rank() : 0);
  StatePart part{all.rank(), all.world_size(), {}};
  for (const auto& state : units) {
    const ElementRange range = part_of(owned_range(state), index, strategy.copies() * among);
    part.states.push_back(narrowed(state, range));
  }
  return part;
}

}  // namespace fastsft
