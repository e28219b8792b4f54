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
  at::Device device;  // holds parameters, gradients and optimizer state
  // Extra units kept gathered, besides the current and the prefetched unit: 1 if embeddings are
  // tied, else 0.
  size_t resident_units;
  bool prefetch = true;   // false: wait for every gather at once, for comparison
  bool blocking = false;  // true: wait for every reduction at once
  // Frozen units, which outlive the strategy, and how many more frozen units stay gathered.
  const std::vector<ParamUnit>& frozen_units = no_units();
  size_t resident_frozen_units = 0;
  StateLayout layout = {};  // layout of the optimizer state; null: no state

  static const std::vector<ParamUnit>& no_units() {
    static const std::vector<ParamUnit> none;
    return none;
  }

  at::TensorOptions compute() const {
    return at::TensorOptions().dtype(options.compute_dtype).device(device);
  }
  at::TensorOptions gradient() const { return wide().dtype(options.grad_dtype); }
  at::TensorOptions wide() const { return at::TensorOptions().dtype(at::kFloat).device(device); }
  // Returns tensor options for sharded optimizer state and masters. Offloaded state is page-locked
  // if a device copies it.
  at::TensorOptions state(at::ScalarType dtype) const {
    if (!options.offload) return wide().dtype(dtype);
    return wide().dtype(dtype).device(at::kCPU).pinned_memory(!device.is_cpu());
  }
};

// Decides which rank holds which part of parameters, gradients and optimizer state, and when units
// are gathered. In float32 the master range is the compute copy. In bfloat16 each rank has a
// separate bfloat16 range, which the optimizer writes; it is also the upper half of a split master.
class Strategy {
 public:
  // Storage of frozen parameters: whole on every rank, or sharded over `ranks.shards`.
  enum class Frozen { kWhole, kByRanges };
  Strategy(const StrategyContext& context, const Sharding& ranks, Frozen frozen = Frozen::kWhole);
  virtual ~Strategy() = default;

  // Starts to gather `unit` asynchronously. No-op if it is already gathered.
  virtual void prefetch(size_t unit) = 0;
  // Returns the whole padded flat parameters in the compute dtype, valid until `release`.
  virtual at::Tensor gather(size_t unit) = 0;
  virtual void release(size_t unit) = 0;
  // Call after the master and compute range of `unit` were written. Collective.
  virtual void after_update(size_t unit) = 0;
  // Waits for the gathers that `after_update` started. Then other code may write the states.
  virtual void await_gathers() {}
  // True if every rank holds everything: then optimizer ranges are whole, and gradient norms need
  // no sum over ranks.
  virtual bool replicated() const = 0;
  virtual int64_t parameter_bytes() const = 0;  // without the masters of narrow weights
  virtual int64_t buffer_bytes() const = 0;
  // Returns the frozen units; the methods above are for trained units only.
  FrozenUnits& frozen() { return frozen_; }
  const FrozenUnits& frozen() const { return frozen_; }

  // Updates compute ranges and gathered copies after masters were loaded. Collective.
  void refresh_compute_weights();

  Gradients& gradients() { return *gradients_; }
  // Changes the option and makes new, empty gradients. Call between steps.
  void set_sync_each_batch(bool each);
  std::vector<UnitState>& states() { return states_; }
  // Returns the states of trained and frozen units, for loading.
  std::vector<UnitState> all_states() const;
  // Returns the compute range that belongs to the master; none in float32.
  std::optional<at::Tensor> compute_range(size_t unit) const;

  // Returns the ranks that together hold one replica. The same range has the same bits in all
  // replicas.
  Communicator& shards() const { return ranks_.shards; }
  int replica_index() const { return ranks_.replicas.rank(); }
  int num_replicas() const { return ranks_.replicas.world_size(); }
  at::Device device() const { return context_.device; }  // device of communicated tensors

  // Returns the unit's state on the device that updates it. Call in unit order. The host's state is
  // out of date from `end_update` until `finish_update` has completed.
  UnitState begin_update(size_t unit);
  void end_update(size_t unit);
  void finish_update();

  int64_t optimizer_bytes() const;  // on the device; if offloaded, the slots of OffloadedStates
  int64_t offloaded_bytes() const;

 protected:
  size_t num_units() const { return context_.units.size(); }
  bool narrow() const { return context_.options.narrow(); }
  // Makes the state of the next unit. `range`: this rank's compute range, which in float32 is also
  // the master.
  void add_state(int64_t begin, at::Tensor range);
  void make_gradients(Reduction keep);

  StrategyContext context_;
  Sharding ranks_;
  std::unique_ptr<Gradients> gradients_;
  FrozenUnits frozen_;
  std::vector<UnitState> states_;
  std::vector<at::Tensor> ranges_;  // compute ranges, in the compute dtype

 private:
  int64_t movable_bytes() const;             // state that offloading moves to the host
  int64_t whole_bytes() const;               // state that is whole on every rank
  std::unique_ptr<OffloadedStates> staged_;  // the offloaded states; made at the first update
};

struct StrategyTag {
  static constexpr const char* kNoun = "sharding strategy";
};
// The functions of a strategy, which is registered under its name.
struct StrategyKind {
  std::function<std::unique_ptr<Strategy>(const StrategyContext&)> make;
  std::function<StateBytes(const StateDescription&)> plan;  // predicts the bytes of `make`
  bool within_nodes = false;   // shards over a node's ranks and replicates across nodes
  bool whole_weights = false;  // every rank has all weights whole between micro-batches
};
using StrategyRegistry = Registry<StrategyTag, StrategyKind>;

// Makes a strategy `Kind` that shards over all ranks or over a node's ranks (StrategyKind::make).
template <typename Kind>
std::unique_ptr<Strategy> make_over_all(const StrategyContext& context) {
  return std::make_unique<Kind>(context, context.groups.over_all());
}
template <typename Kind>
std::unique_ptr<Strategy> make_over_node(const StrategyContext& context) {
  return std::make_unique<Kind>(context, context.groups.over_node());
}

// Returns all names; the value is true if the strategy shards within nodes.
std::map<std::string, bool> strategies();
// Returns the names of strategies with StrategyKind::whole_weights.
std::vector<std::string> strategies_with_whole_weights();

// Makes the strategy that the options name. On a single rank every strategy is no_shard.
std::unique_ptr<Strategy> make_strategy(const StrategyContext& context);
StateBytes plan_state(const StateDescription& description);

}  // namespace fastsft
