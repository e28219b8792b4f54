#include "shard/strategy.h"

#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "shard/gradients.h"

namespace fastsft {

Strategy::Strategy(const StrategyContext& context, const Sharding& ranks, Frozen frozen)
    : context_(context),
      ranks_(ranks),
      frozen_(context.frozen_units,
              {.compute = context.compute(),
               .dtype = context.options.frozen_dtype,
               .shards = frozen == Frozen::kByRanges ? &ranks.shards : nullptr,
               .resident_units = context.resident_frozen_units,
               .prefetch = context.prefetch}) {}

void Strategy::add_state(int64_t begin, at::Tensor range) {
  const int64_t size = range.numel();
  UnitState state;
  state.unit = &context_.units[states_.size()];
  state.begin = begin;
  state.end = begin + size;
  const StateOptions& options = context_.options;
  if (options.split_master()) state.high = range;
  const auto dtype = options.split_master() ? at::kShort : at::kFloat;
  state.master = narrow() ? at::zeros({size}, context_.state(dtype)) : range;
  if (context_.layout) {
    state.specs = std::make_shared<const StateSpecs>(context_.layout(*state.unit, options));
  }
  for (const StateSpec& spec : state.kept()) {
    const auto place = spec.by_ranges() ? context_.state(spec.dtype) : context_.wide();
    state.values.push_back(at::zeros({spec.held(state.range())}, place.dtype(spec.dtype)));
  }
  states_.push_back(std::move(state));
  ranges_.push_back(std::move(range));
}

std::vector<UnitState> Strategy::all_states() const {
  std::vector<UnitState> all = states_;
  all.insert(all.end(), frozen_.states().begin(), frozen_.states().end());
  return all;
}

void Strategy::make_gradients(Reduction keep) {
  gradients_.reset();  // free the old gradients before the new ones are allocated
  const StateOptions& options = context_.options;
  const bool once = keep == Reduction::kWhole || !options.sync_each_batch;
  if (once && options.grad_dtype == at::kFloat) {
    gradients_ = std::make_unique<SummedGradients>(
        context_.units, ranks_,
        SummedGradients::Options{
            .keep = keep, .wide = context_.wide(), .blocking = context_.blocking});
    return;
  }
  gradients_ = std::make_unique<ReducedGradients>(
      context_.units, ranks_,
      ReducedGradients::Options{.keep = keep,
                                .accumulated = context_.gradient(),
                                .in_products = options.gradients_in_products() &&
                                               ranks_.shards.world_size() == 1 &&
                                               ranks_.replicas.world_size() == 1,
                                .open_units = 1 + context_.resident_units,
                                .blocking = context_.blocking});
}

void Strategy::set_sync_each_batch(bool each) {
  StateOptions options = context_.options;
  options.sync_each_batch = each;
  options.check();
  context_.options = options;
  make_gradients(replicated() ? Reduction::kWhole : Reduction::kRange);
}

UnitState Strategy::begin_update(size_t unit) {
  if (!context_.options.offload) return states_[unit];
  if (!staged_) staged_ = std::make_unique<OffloadedStates>(states_, context_.device, narrow());
  return staged_->begin(unit);
}

void Strategy::end_update(size_t unit) {
  if (staged_) staged_->end(unit);
  after_update(unit);
}

void Strategy::finish_update() {
  if (staged_) staged_->finish();
}

std::optional<at::Tensor> Strategy::compute_range(size_t unit) const {
  if (!narrow()) return std::nullopt;
  return ranges_[unit];
}

void Strategy::refresh_compute_weights() {
  const bool rounds = narrow() && !context_.options.split_master();
  for (size_t unit = 0; unit < num_units(); ++unit) {
    if (rounds) round_master(states_[unit].master, ranges_[unit]);
    after_update(unit);
  }
}

int64_t Strategy::optimizer_bytes() const {
  if (!context_.options.offload) return movable_bytes() + whole_bytes();
  return whole_bytes() + (staged_ ? staged_->nbytes() : 0);
}

int64_t Strategy::offloaded_bytes() const { return context_.options.offload ? movable_bytes() : 0; }

namespace {

int64_t value_bytes(const UnitState& state, bool by_ranges) {
  int64_t sum = 0;
  for (size_t i = 0; i < state.values.size(); ++i) {
    if (state.kept()[i].by_ranges() == by_ranges) {
      sum += static_cast<int64_t>(state.values[i].nbytes());
    }
  }
  return sum;
}

}  // namespace

int64_t Strategy::movable_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) {
    sum += value_bytes(state, true);
    if (narrow()) sum += static_cast<int64_t>(state.master.nbytes());
  }
  return sum;
}

int64_t Strategy::whole_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) sum += value_bytes(state, false);
  return sum;
}

std::map<std::string, bool> strategies() {
  const auto& registry = StrategyRegistry::instance();
  std::map<std::string, bool> result;
  for (const auto& name : registry.names()) result[name] = registry.get(name).within_nodes;
  return result;
}

std::vector<std::string> strategies_with_whole_weights() {
  const auto& registry = StrategyRegistry::instance();
  std::vector<std::string> result;
  for (const auto& name : registry.names())
    if (registry.get(name).whole_weights) result.push_back(name);
  return result;
}

namespace {

const StrategyKind& find_kind(const StateOptions& options, int world_size) {
  const auto& kind = StrategyRegistry::instance().get(options.strategy);
  if (world_size == 1) return StrategyRegistry::instance().get("no_shard");
  require(kind.whole_weights || !options.keep_fp8_weights,
          "keep_fp8_weights is True, and strategy is \"", options.strategy,
          "\", under which a rank has weights whole only while it uses them; use no_shard or "
          "shard_grad_op, or leave keep_fp8_weights out");
  return kind;
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const StrategyContext& context) {
  const StateOptions& options = context.options;
  options.check();
  require(
      options.frozen_dtype == FrozenDtype::kCompute || !context.frozen_units.empty(),
      "frozen_dtype is \"nf4\", but all parameters are trained; train adapters, or leave it out");
  return find_kind(options, context.groups.all().world_size()).make(context);
}

StateBytes plan_state(const StateDescription& description) {
  return find_kind(description.options, description.world_size).plan(description);
}

}  // namespace fastsft
