#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/adapters.h"
#include "model/generic_model.h"
#include "model/op_memory.h"
#include "shard/param_unit.h"
#include "shard/state_options.h"

namespace fastsft {

// Inputs of the memory plan.
struct PlanRequest {
  StateOptions state;
  AdapterOptions adapters;
  std::string recompute = "selective";
  int world_size = 1;
  int node_size = 0;             // ranks of a node, for hybrid strategies; 0: all are one
  MicroBatchSize micro_batch{};  // the largest of a rank; empty: the state alone
  int64_t step_tokens = 0;       // of one rank in one step: its batches are on the host together
  int64_t step_labels = 0;
  int64_t micro_batches = 1;  // of one rank in one step
  int64_t threads = 1;
  bool on_cpu = true;      // gloo clones what it moves, and bfloat16 products are widened
  bool use_cudnn = false;  // of attention
};

// Bytes of one rank by what they are for. `peak` is the most that torch's allocator of the device
// hands out at once from the engine's construction on; `outside` is held next to it.
struct MemoryPlan {
  std::vector<std::pair<std::string, int64_t>> parts;  // they add up to peak
  int64_t peak = 0;
  int64_t outside = 0;
  // Page-locked memory of the host, with a GPU: offloaded state, uploads, results of steps. On
  // CPUs it is in `parts`.
  int64_t host = 0;
};

// std::invalid_argument for unknown names, and for nodes that do not divide the ranks.
MemoryPlan plan_memory(const ModelConfig& config, const PlanRequest& request);

// Of a called model (model/generic_model.h), without activations, labelled tokens and logits: their
// parts are 0, since only their owner knows them.
MemoryPlan plan_generic_memory(const GenericLayout& layout, const PlanRequest& request);

// Counts what torch's CPU allocator hands out while it runs, in all threads; for proofs, at no cost
// when it is off. `start` puts a counting allocator before torch's own and forgets earlier counts;
// memory from before is not counted, memory that outlives `stop` stays valid. One at a time:
// std::invalid_argument otherwise.
class AllocationMeter {
 public:
  static void start();
  static void stop();
  static int64_t held();   // bytes now
  static int64_t count();  // pieces of memory handed out since `start`
  static int64_t peak();   // the most bytes held at once since `start`, also after `stop`
};

}  // namespace fastsft
