#pragma once

#include <cstdint>
#include <vector>

#include "shard/optimizer_state.h"
#include "shard/param_unit.h"
#include "shard/state_options.h"

namespace fastsft {

// What the bytes of a strategy depend on.
struct StateDescription {
  const std::vector<ParamUnit>& units;
  const StateOptions& options;
  int world_size = 1;
  int node_size = 0;          // ranks of a node; 0: all are one
  int copies = 1;             // of the state, which `world_size` ranks hold together each
  size_t resident_units = 0;  // StrategyContext
  bool cloned = true;         // collectives clone the whole unit, as gloo does
  bool accumulates = true;    // a step has more than one micro-batch
  const std::vector<ParamUnit>* frozen = nullptr;  // units that nothing updates; null: none
  size_t resident_frozen_units = 0;
  StateLayout layout = {};   // of the optimizer; null: it keeps nothing
  bool in_products = false;  // gradients of linears are not whole in float32 (ReducedGradients)

  // Padded elements of a unit, of all units, and of the largest from the second one on (blocks and
  // head) or of all.
  int64_t padded(size_t unit) const { return units[unit].padded_numel(world_size); }
  int64_t total() const;
  // The first block, or the one unit where adapters train no other.
  size_t first_block() const { return units.size() > 1 ? 1 : 0; }
  int64_t largest(size_t first_unit) const;
  // Elements of the largest gradient that is whole in float32.
  int64_t largest_gradient() const;
  // What a node's ranks hold together, for strategies that keep a copy on every node.
  StateDescription within_node() const;

  // Bytes of ReducedGradients, which keep a range of a unit or the whole (world_size 1).
  int64_t reduced_gradients() const;
  // Of a sharded strategy: of those, or of SummedGradients.
  int64_t sharded_gradients() const {
    return options.sync_each_batch ? reduced_gradients() : 4 * total();
  }
  // What a CPU widens to add to a bfloat16 gradient: the old and the new sum of a range in float32.
  int64_t widened_sums() const;
  bool clones() const { return cloned && world_size > 1; }
};

// Bytes of one rank. Clones live while a collective runs: during blocks, and between them,
// micro-batches and steps, where widened sums live, too.
struct StateBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // on the device: offloaded, the slots of OffloadedStates
  int64_t offloaded = 0;  // on the host
  int64_t buffers = 0;    // whole units
  int64_t clones_in_blocks = 0;
  int64_t clones_between = 0;
};

// What the optimizer keeps, and the masters of bfloat16, of a range of every unit: on the rank that
// has most of it.
void plan_optimizer(const StateDescription& description, StateBytes& bytes);

// The parameters that nothing updates: whole, or by ranges of every unit and whole in buffers.
void plan_frozen_whole(const StateDescription& description, StateBytes& bytes);
void plan_frozen_ranges(const StateDescription& description, StateBytes& bytes);

}  // namespace fastsft
