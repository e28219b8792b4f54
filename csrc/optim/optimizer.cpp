#include "optim/optimizer.h"

#include <algorithm>

#include "ops/adamw/adamw.h"
#include "ops/norm_squared/norm_squared.h"

namespace fastsft {
namespace {

// One segment of a unit's range, given in elements of the range.
struct Segment {
  int64_t begin, end;
  double weight_decay;
};

// `first` is the number of the range's first element in the whole model.
void update(Strategy& strategy, size_t unit, const UnitState& state, int64_t first,
            const Segment& segment, const AdamWOptions& options, const at::Tensor& control) {
  const int64_t size = segment.end - segment.begin;
  if (size <= 0) return;
  const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, segment.begin, size); };
  std::optional<at::Tensor> copy = strategy.compute_range(unit);
  if (copy) copy = part(*copy);
  adamw(part(state.master), copy, part(strategy.gradients().local(unit)), part(state.exp_avg),
        part(state.exp_avg_sq), control, options.learning_rate, options.beta1, options.beta2,
        options.eps, segment.weight_decay, options.rounding_seed, first + segment.begin);
}

}  // namespace

void adamw_update(Strategy& strategy, const AdamWOptions& options, const at::Tensor& control) {
  int64_t unit_begin = 0;  // the same for every number of ranks
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    const UnitState state = strategy.begin_update(unit);
    const int64_t size = state.end - state.begin;
    const int64_t boundary = std::clamp<int64_t>(state.unit->decay_end() - state.begin, 0, size);
    const int64_t first = unit_begin + state.begin;
    update(strategy, unit, state, first, {0, boundary, options.weight_decay}, options, control);
    update(strategy, unit, state, first, {boundary, size, 0.0}, options, control);
    unit_begin += state.unit->padded_numel(1);
    strategy.end_update(unit);
  }
  strategy.finish_update();
}

void add_local_norm_squared(Strategy& strategy, const at::Tensor& out) {
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    norm_squared(strategy.gradients().local(unit), out);
  }
}

}  // namespace fastsft
