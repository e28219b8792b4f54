#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "shard/strategy.h"
#include "shard/unit_buffers.h"

namespace fastsft {
namespace {

// Every rank holds all parameters, gradients and optimizer state.
class NoShard : public Strategy {
 public:
  explicit NoShard(const StrategyContext& context) : Strategy(context, context.groups.over_all()) {
    for (const auto& unit : context_.units) {
      add_state(0, at::zeros({unit.padded_numel(1)}, context_.compute()));
    }
    make_gradients(Reduction::kWhole);
  }

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override { return ranges_[unit]; }
  void release(size_t) override {}
  void after_update(size_t) override {}
  bool replicated() const override { return true; }
  int64_t buffer_bytes() const override { return 0; }

  int64_t parameter_bytes() const override {
    int64_t sum = 0;
    for (const auto& range : ranges_) sum += static_cast<int64_t>(range.nbytes());
    return sum;
  }
};

// Plans all state on every rank. A float32 gradient is accumulated and reduced in place. A bfloat16
// gradient also needs float32 buffers for whole units: each micro-batch's gradient is computed and
// reduced there, and then added (ReducedGradients). On a single rank with grad_dtype equal to
// compute_dtype, GEMMs add the gradients of linears directly, so the buffers leave out the linears.
StateBytes plan_no_shard(const StateDescription& d) {
  StateDescription alone = d;
  alone.in_products = d.world_size == 1 && d.options.gradients_in_products();
  alone.world_size = 1;  // units are padded for one rank
  const int64_t size = alone.total();
  StateBytes bytes{
      .parameters = size * d.options.itemsize(),
      .gradients = d.options.grad_itemsize() < 4 ? alone.reduced_gradients() : 4 * size,
      .clones_between = alone.widened_sums()};
  plan_optimizer(alone, bytes);
  plan_frozen_whole(alone, bytes);
  return bytes;
}

const bool kNoShardRegistered = StrategyRegistry::instance().add(
    "no_shard",
    {.make = [](const StrategyContext& context) { return std::make_unique<NoShard>(context); },
     .plan = plan_no_shard,
     .whole_weights = true});

}  // namespace

// Parameters are whole on every rank between steps; gradients and optimizer state are sharded over
// `ranks.shards`. A unit's gather begins right after its update, so it overlaps the updates of
// later units and the forward pass of earlier units. The first use of the unit waits for it.
class ShardGradOp : public Strategy {
 public:
  ShardGradOp(const StrategyContext& context, const Sharding& ranks);

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override;
  void release(size_t) override {}
  void after_update(size_t unit) override;
  void await_gathers() override;
  bool replicated() const override { return false; }
  int64_t parameter_bytes() const override;
  int64_t buffer_bytes() const override { return 0; }

 private:
  std::vector<at::Tensor> whole_;
  std::vector<PendingPtr> pending_;
};

// Plans whole parameters, sharded gradients next to whole float32 gradients, and one gather at a
// time after the update.
StateBytes plan_shard_grad_op(const StateDescription& description);

ShardGradOp::ShardGradOp(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks), pending_(context.units.size()) {
  const int count = shards().world_size();
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(count), begin = size * shards().rank();
    whole_.push_back(at::zeros({size * count}, context_.compute()));
    add_state(begin, whole_.back().narrow(0, begin, size));
  }
  make_gradients(Reduction::kRange);
}

// gloo clones its input, so only one gather runs at a time, as in the memory plan.
void ShardGradOp::after_update(size_t unit) {
  if (device().is_cpu() && unit > 0) gather(unit - 1);
  pending_[unit] = shards().all_gather(whole_[unit], ranges_[unit], context_.units[unit].name());
  if (!context_.prefetch) gather(unit);
}

at::Tensor ShardGradOp::gather(size_t unit) {
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
  return whole_[unit];
}

void ShardGradOp::await_gathers() {
  for (size_t unit = 0; unit < num_units(); ++unit) gather(unit);
}

int64_t ShardGradOp::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& whole : whole_) sum += static_cast<int64_t>(whole.nbytes());
  return sum;
}

StateBytes plan_shard_grad_op(const StateDescription& d) {
  const int64_t clone = d.clones() ? 1 : 0;
  StateBytes bytes{
      .parameters = d.total() * d.options.itemsize(),
      .gradients = d.sharded_gradients(),
      .clones_in_blocks = clone * 4 * d.largest(d.first_block()),
      .clones_between = clone * std::max(4 * d.padded(0), d.options.itemsize() * d.largest(0))};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  plan_frozen_whole(d, bytes);
  return bytes;
}

namespace {

const bool kShardGradOpRegistered = StrategyRegistry::instance().add(
    "shard_grad_op",
    {.make = make_over_all<ShardGradOp>, .plan = plan_shard_grad_op, .whole_weights = true});

}  // namespace

// Parameters, gradients and optimizer state are sharded over `ranks.shards`; a unit is whole only
// during its use.
class FullShard : public Strategy {
 public:
  FullShard(const StrategyContext& context, const Sharding& ranks);

  void prefetch(size_t unit) override;
  at::Tensor gather(size_t unit) override;
  void release(size_t unit) override { buffers_.release(unit); }
  void after_update(size_t) override {}
  bool replicated() const override { return false; }
  int64_t parameter_bytes() const override;
  int64_t buffer_bytes() const override { return buffers_.nbytes(); }

 private:
  void begin_gather(size_t unit);

  UnitBuffers buffers_;
  std::vector<PendingPtr> pending_;
};

// Plans sharded state with buffers for whole units: parameters for the current and the next unit,
// and gradients for the unit being written and the unit being reduced.
StateBytes plan_full_shard(const StateDescription& description);

FullShard::FullShard(const StrategyContext& context, const Sharding& ranks)
    : Strategy(context, ranks, Frozen::kByRanges),
      buffers_(context_.units, shards().world_size(), 2 + context.resident_units, context.compute(),
               trace::Track::kParameters),
      pending_(context.units.size()) {
  for (const auto& unit : context_.units) {
    const int64_t size = unit.shard_numel(shards().world_size());
    add_state(size * shards().rank(), at::zeros({size}, context_.compute()));
  }
  make_gradients(Reduction::kRange);
}

void FullShard::prefetch(size_t unit) {
  if (context_.prefetch) begin_gather(unit);
}

at::Tensor FullShard::gather(size_t unit) {
  begin_gather(unit);
  if (pending_[unit]) pending_[unit]->wait();
  pending_[unit].reset();
  return buffers_.acquire(unit);
}

int64_t FullShard::parameter_bytes() const {
  int64_t sum = 0;
  for (const auto& range : ranges_) sum += static_cast<int64_t>(range.nbytes());
  return sum;
}

// A released buffer may be overwritten at once: on a GPU the all-gather is ordered after the
// kernels already enqueued on the stream; on a CPU they have finished.
void FullShard::begin_gather(size_t unit) {
  if (buffers_.is_acquired(unit)) return;
  pending_[unit] =
      shards().all_gather(buffers_.acquire(unit), ranges_[unit], context_.units[unit].name());
}

// A block's reduction overlaps the gather two blocks further on; the embedding's reduction overlaps
// the first gather of the next micro-batch.
StateBytes plan_full_shard(const StateDescription& d) {
  const int64_t range = d.total() / d.world_size, embedding = d.padded(0);
  const auto open = static_cast<int64_t>(2 + d.resident_units);
  const int64_t clone = d.clones() ? 1 : 0;
  const bool next_to_gather = d.accumulates && d.options.sync_each_batch;
  StateBytes bytes{
      .parameters = range * d.options.itemsize(),
      .gradients = d.sharded_gradients(),
      .buffers = d.options.itemsize() * open * d.largest(0),
      .clones_in_blocks = clone * (4 * d.largest(d.first_block()) +
                                   d.options.itemsize() * d.padded(d.first_block())),
      .clones_between = clone * embedding * (next_to_gather ? 4 + d.options.itemsize() : 4)};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  plan_frozen_ranges(d, bytes);
  return bytes;
}

namespace {

const bool kFullShardRegistered = StrategyRegistry::instance().add(
    "full_shard", {.make = make_over_all<FullShard>, .plan = plan_full_shard});

// Shards as full_shard within each node and replicates across nodes. Units are gathered and reduced
// within a node; once a step, gradient ranges are summed across nodes. Equal gradients keep the
// replicas equal to the bit, so nothing else is exchanged between nodes.
const bool kHybridShardRegistered = StrategyRegistry::instance().add(
    "hybrid_shard",
    {.make = make_over_node<FullShard>,
     .plan = [](const StateDescription& d) { return plan_full_shard(d.within_node()); },
     .within_nodes = true});

// Shards as shard_grad_op within each node and replicates across nodes, like hybrid_shard.
const bool kHybridShardZero2Registered = StrategyRegistry::instance().add(
    "hybrid_shard_zero2",
    {.make = make_over_node<ShardGradOp>,
     .plan = [](const StateDescription& d) { return plan_shard_grad_op(d.within_node()); },
     .within_nodes = true,
     .whole_weights = true});

}  // namespace

}  // namespace fastsft
