#include "optim/optimizer.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/error.h"
#include "ops/gradient/gradient.h"

namespace fastsft {

const OptimizerKind& find_optimizer(const StateOptions& options) {
  const OptimizerKind& kind = OptimizerRegistry::instance().get(options.optimizer);
  require(kind.narrow_state || options.optim_dtype == c10::ScalarType::Float,
          "optim_dtype is bfloat16, which the optimizer \"", options.optimizer,
          "\" does not have; leave --optim_dtype out, or use --optim adamw_torch");
  return kind;
}

void add_local_norm_squared(Strategy& strategy, const at::Tensor& out) {
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    norm_squared(strategy.gradients().local(unit), out);
  }
}

void add_tensor_norms_squared(Strategy& strategy, const at::Tensor& out) {
  FASTSFT_ASSERT(strategy.replicated(), "norms of tensors need whole gradients");
  std::vector<at::Tensor> norms;
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    const at::Tensor gradient = strategy.gradients().local(unit);
    for (const auto& slot : strategy.states()[unit].unit->slots()) {
      const at::Tensor one = gradient.narrow(0, slot.offset, slot.numel());
      norms.push_back(at::linalg_vector_norm(one, 2, std::nullopt, false, at::kFloat));
    }
  }
  if (norms.empty()) return;
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms)).to(at::kDouble);
  out.add_(total.square());
}

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
  int64_t unit_begin = 0;  // unit's first element in the model; does not depend on the rank count
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
