#include "optim/range_update.h"

#include <algorithm>

namespace fastsft {

UpdateRange range_of(Strategy& strategy, size_t unit, const UnitState& state,
                     const ElementRange& part) {
  const int64_t begin = part.begin - state.begin, size = part.size();
  const auto cut = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, size); };
  UpdateRange range{.master = cut(state.master),
                    .copy = strategy.compute_range(unit),
                    .grad = cut(strategy.gradients().local(unit)),
                    .values = state.values};
  if (range.copy) range.copy = cut(*range.copy);
  for (size_t i = 0; i < range.values.size(); ++i) {
    const StateSpec& spec = state.kept()[i];
    if (!spec.by_ranges()) continue;
    range.values[i] = range.values[i].narrow(0, spec.offset(state.range(), part), spec.count(part));
  }
  return range;
}

void update_ranges(Strategy& strategy, const std::function<void(const UpdateRange&)>& work) {
  int64_t unit_begin = 0;  // the same for every number of ranks
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    const UnitState state = strategy.begin_update(unit);
    const int64_t boundary = std::clamp(state.unit->decay_end(), state.begin, state.end);
    for (const bool decays : {true, false}) {
      const ElementRange part =
          decays ? ElementRange{state.begin, boundary} : ElementRange{boundary, state.end};
      if (part.size() == 0) continue;
      UpdateRange range = range_of(strategy, unit, state, part);
      range.first = unit_begin + part.begin;
      range.decays = decays;
      work(range);
    }
    unit_begin += state.unit->padded_numel(1);
    strategy.end_update(unit);
  }
  strategy.finish_update();
}

}  // namespace fastsft
