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

// The memory plan's inputs.
struct PlanRequest {
  StateOptions state;
  AdapterOptions adapters;
  std::string recompute = "selective";
  int world_size = 1;
  int node_size = 0;  // ranks per node for hybrid strategies; 0: all ranks are in one node
  MicroBatchSize micro_batch{};  // a rank's largest micro-batch; empty: plan only the state
  int64_t step_tokens = 0;       // tokens of a rank's step, whose batches are on the host together
  int64_t step_labels = 0;
  int64_t micro_batches = 1;  // micro-batches of a rank's step
  int64_t threads = 1;
  bool on_cpu = true;      // gloo clones tensors, and bfloat16 GEMMs need float32 copies
  bool use_cudnn = false;  // for attention
};

// A rank's bytes by purpose. `peak`: the most bytes that torch's device allocator hands out at
// once, counted from the engine's construction. `outside`: bytes that are allocated without torch.
struct MemoryPlan {
  std::vector<std::pair<std::string, int64_t>> parts;  // their sum is `peak`
  int64_t peak = 0;
  int64_t outside = 0;
  // Page-locked host memory for a GPU: offloaded state, uploads and step results. On CPUs `parts`
  // has these bytes.
  int64_t host = 0;
};

// Throws std::invalid_argument for unknown names, and if nodes do not divide the ranks.
MemoryPlan plan_memory(const ModelConfig& config, const PlanRequest& request);

// Plans the memory for a generic model (model/generic_model.h). The parts for activations, labelled
// tokens and logits are 0, because only the transformers class knows them.
MemoryPlan plan_generic_memory(const GenericLayout& layout, const PlanRequest& request);

// Counts the memory that torch's CPU allocator hands out in all threads between `start` and `stop`;
// for tests, at no cost when it is off. `start` installs a counting allocator and resets the
// counters. Memory from before `start` is not counted; memory that outlives `stop` stays valid.
// Throws std::invalid_argument if a meter runs already.
class AllocationMeter {
 public:
  static void start();
  static void stop();
  static int64_t held();   // bytes held now
  static int64_t count();  // allocations since `start`
  static int64_t peak();   // most bytes held at once since `start`
};

}  // namespace fastsft
