#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/registry.h"
#include "shard/communicator.h"
#include "shard/frozen_units.h"
#include "shard/gradients.h"
#include "shard/offloaded_states.h"
#include "shard/state_plan.h"
#include "shard/unit_state.h"

namespace fastsft {

struct StrategyContext {
  const std::vector<ParamUnit>& units;  // trained units; outlives the strategy
  RankGroups& groups;                   // outlives the strategy
  StateOptions options;
  at::Device device;  // of parameters, gradients and optimizer state
  // Extra units kept gathered, besides the current and the prefetched one: 1 if embeddings are
  // tied, else 0.
  size_t resident_units;
  bool prefetch = true;   // false: every gather is waited for at once, for comparison
  bool blocking = false;  // the same for every reduction
  // Frozen units, which outlive the strategy, and how many extra ones of them are kept gathered.
  const std::vector<ParamUnit>& frozen_units = no_units();
  size_t resident_frozen_units = 0;
  StateLayout layout = {};  // of the optimizer; null: no state

  static const std::vector<ParamUnit>& no_units() {
    static const std::vector<ParamUnit> none;
    return none;
  }

  at::TensorOptions compute() const {
    return at::TensorOptions().dtype(options.compute_dtype).device(device);
  }
  at::TensorOptions gradient() const { return wide().dtype(options.grad_dtype); }
  at::TensorOptions wide() const { return at::TensorOptions().dtype(at::kFloat).device(device); }
  // Options of sharded optimizer state and of masters. Offloaded state is page-locked if a device
  // reads it.
  at::TensorOptions state(at::ScalarType dtype) const {
    if (!options.offload) return wide().dtype(dtype);
    return wide().dtype(dtype).device(at::kCPU).pinned_memory(!device.is_cpu());
  }
};

// Decides which rank holds which part of parameters, gradients and optimizer state, and when units
// are gathered. In float32 the master range is the compute copy. In bfloat16 each rank keeps a
// bfloat16 range besides it, which the optimizer writes and which is also the upper half of a split
// master.
class Strategy {
 public:
  // Whether frozen parameters are whole on every rank or sharded over `ranks.shards`.
  enum class Frozen { kWhole, kByRanges };
  Strategy(const StrategyContext& context, const Sharding& ranks, Frozen frozen = Frozen::kWhole);
  virtual ~Strategy() = default;

  // Starts gathering `unit` asynchronously; a no-op if it is gathered.
  virtual void prefetch(size_t unit) = 0;
  // The whole padded flat parameters in the compute dtype, valid until `release`.
  virtual at::Tensor gather(size_t unit) = 0;
  virtual void release(size_t unit) = 0;
  // Master and compute range of `unit` have been written. Collective.
  virtual void after_update(size_t unit) = 0;
  // Waits for the gathers that `after_update` started; then others may write the states.
  virtual void await_gathers() {}
  // True if every rank holds everything: optimizer ranges are whole, and norms need no sum over
  // ranks.
  virtual bool replicated() const = 0;
  virtual int64_t parameter_bytes() const = 0;  // without the masters of bfloat16
  virtual int64_t buffer_bytes() const = 0;
  // Frozen units; the methods above take trained units only.
  FrozenUnits& frozen() { return frozen_; }
  const FrozenUnits& frozen() const { return frozen_; }

  // Updates compute ranges and gathered copies after a load wrote the masters. Collective.
  void refresh_compute_weights();

  Gradients& gradients() { return *gradients_; }
  // Replaces the gradients by those of the other option. Call between steps.
  void set_sync_each_batch(bool each);
  std::vector<UnitState>& states() { return states_; }
  // States of trained and frozen units, for loading.
  std::vector<UnitState> all_states() const;
  // The bfloat16 range that belongs to the master; none in float32.
  std::optional<at::Tensor> compute_range(size_t unit) const;

  // The ranks that hold one replica of the state together, and the number of this replica. Ranks of
  // different replicas with the same range hold the same bits.
  Communicator& shards() const { return ranks_.shards; }
  int replica_index() const { return ranks_.replicas.rank(); }
  int num_replicas() const { return ranks_.replicas.world_size(); }
  at::Device device() const { return context_.device; }  // of what is communicated

  // Returns the unit's state on the device that updates it. Call in unit order. Between
  // `end_update` and the end of `finish_update`, the host's state is out of date.
  UnitState begin_update(size_t unit);
  void end_update(size_t unit);
  void finish_update();

  int64_t optimizer_bytes() const;  // on the device: offloaded, what passes through it
  int64_t offloaded_bytes() const;

 protected:
  size_t num_units() const { return context_.units.size(); }
  bool narrow() const { return context_.options.narrow(); }
  // Makes the state of one unit; `range` is this rank's compute range (the master itself in
  // float32).
  void add_state(int64_t begin, at::Tensor range);
  void make_gradients(Reduction keep);

  StrategyContext context_;
  Sharding ranks_;
  std::unique_ptr<Gradients> gradients_;
  FrozenUnits frozen_;
  std::vector<UnitState> states_;
  std::vector<at::Tensor> ranges_;  // in the compute dtype

 private:
  int64_t movable_bytes() const;             // of what offloading moves to the host
  int64_t whole_bytes() const;               // of the rest of the optimizer's state
  std::unique_ptr<OffloadedStates> staged_;  // offloaded states, from the first update on
};

struct StrategyTag {
  static constexpr const char* kNoun = "sharding strategy";
};
// A strategy, registered under its name.
struct StrategyKind {
  std::function<std::unique_ptr<Strategy>(const StrategyContext&)> make;
  std::function<StateBytes(const StateDescription&)> plan;  // the bytes that `make` will allocate
  bool within_nodes = false;  // shards over the ranks of a node, with a copy on every node
};
using StrategyRegistry = Registry<StrategyTag, StrategyKind>;

// StrategyKind::make of a class that takes the ranks to shard over.
template <typename Kind>
std::unique_ptr<Strategy> make_over_all(const StrategyContext& context) {
  return std::make_unique<Kind>(context, context.groups.over_all());
}
template <typename Kind>
std::unique_ptr<Strategy> make_over_node(const StrategyContext& context) {
  return std::make_unique<Kind>(context, context.groups.over_node());
}

// Every name, with whether it shards within nodes.
std::map<std::string, bool> strategies();

// By the name in the options; on one rank every strategy is no_shard.
std::unique_ptr<Strategy> make_strategy(const StrategyContext& context);
StateBytes plan_state(const StateDescription& description);

}  // namespace fastsft
