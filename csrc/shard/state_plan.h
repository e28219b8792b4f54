#pragma once

#include <cstdint>
#include <vector>

#include "shard/optimizer_state.h"
#include "shard/param_unit.h"
#include "shard/state_options.h"

namespace fastsft {

// The inputs of a strategy's memory plan.
struct StateDescription {
  const std::vector<ParamUnit>& units;
  const StateOptions& options;
  int world_size = 1;
  int node_size = 0;          // ranks per node; 0: all ranks are in one node
  int copies = 1;             // number of replicas; `world_size` ranks hold each replica
  size_t resident_units = 0;  // as in StrategyContext
  bool cloned = true;         // collectives clone the whole unit, as gloo does
  bool accumulates = true;    // a step has more than one micro-batch
  const std::vector<ParamUnit>* frozen = nullptr;  // frozen units; null: none
  size_t resident_frozen_units = 0;
  StateLayout layout = {};   // layout of the optimizer state; null: no state
  bool in_products = false;  // no whole float32 gradients of linears (ReducedGradients)

  // Return padded element counts: a unit's, the sum over all units, and the largest from
  // `first_unit` on.
  int64_t padded(size_t unit) const { return units[unit].padded_numel(world_size); }
  int64_t total() const;
  // Returns the first block's unit; 0 if there is only one trained unit.
  size_t first_block() const { return units.size() > 1 ? 1 : 0; }
  int64_t largest(size_t first_unit) const;
  // Returns the element count of the largest whole float32 gradient.
  int64_t largest_gradient() const;
  // Returns the description of one node's ranks, for strategies with a replica on every node.
  StateDescription within_node() const;

  // Returns the bytes that ReducedGradients needs to keep a range per unit, or whole units if
  // `world_size` is 1.
  int64_t reduced_gradients() const;
  // Returns the gradient bytes of a sharded strategy (ReducedGradients or SummedGradients).
  int64_t sharded_gradients() const {
    return options.sync_each_batch ? reduced_gradients() : 4 * total();
  }
  // Returns the bytes of the two float32 ranges, old and new sum, that a CPU needs to add to a
  // bfloat16 gradient.
  int64_t widened_sums() const;
  bool clones() const { return cloned && world_size > 1; }
};

// Bytes per rank. Clones exist while a collective runs: `clones_in_blocks` during a block's
// computation, `clones_between` between blocks, micro-batches and steps. `clones_between` includes
// widened sums.
struct StateBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // on the device; if offloaded, the slots of OffloadedStates
  int64_t offloaded = 0;  // on the host
  int64_t buffers = 0;    // buffers for whole units
  int64_t clones_in_blocks = 0;
  int64_t clones_between = 0;
};

// Sets the bytes of optimizer state and master weights to those of the rank with the most.
void plan_optimizer(const StateDescription& description, StateBytes& bytes);

// Add the bytes of frozen parameters: whole on every rank, or sharded with buffers for whole units.
void plan_frozen_whole(const StateDescription& description, StateBytes& bytes);
void plan_frozen_ranges(const StateDescription& description, StateBytes& bytes);

}  // namespace fastsft
