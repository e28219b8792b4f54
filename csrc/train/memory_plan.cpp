#include "train/memory.h"

#include <ATen/Context.h>

#include <algorithm>

#include "core/error.h"
#include "data/batch_upload.h"
#include "model/buffer_table.h"
#include "model/layout.h"
#include "ops/gradient/control_slots.h"
#include "optim/optimizer.h"
#include "shard/strategy.h"

namespace fastsft {
namespace {

// Two blocks of batch_upload.h, each with a quarter as much room again.
int64_t batch_bytes(const PlanRequest& r) {
  return most_packed_bytes(r.step_tokens, r.step_labels, r.micro_batches) * 5 / 2;
}

// The control block of the device, and as much for each result on its way.
constexpr int64_t kControlBytes = kControlSize * static_cast<int64_t>(sizeof(double));
constexpr int64_t kResults = 2;

struct UnitsInPlan {
  const std::vector<ParamUnit>& units;
  size_t resident_units = 0;
  const std::vector<ParamUnit>& frozen_units = StrategyContext::no_units();
  size_t resident_frozen_units = 0;
};

StateBytes state_of(const UnitsInPlan& layout, const PlanRequest& r) {
  require(r.node_size >= 0 && (r.node_size == 0 || r.world_size % r.node_size == 0),
          "node_size is ", r.node_size, ", expected 0 or a divisor of the ", r.world_size,
          " ranks");
  const OptimizerKind& optimizer = find_optimizer(r.state);
  StateBytes bytes = plan_state({.units = layout.units,
                                 .options = r.state,
                                 .world_size = r.world_size,
                                 .node_size = r.node_size,
                                 .resident_units = layout.resident_units,
                                 .cloned = r.on_cpu,
                                 .accumulates = r.micro_batches > 1,
                                 .frozen = &layout.frozen_units,
                                 .resident_frozen_units = layout.resident_frozen_units,
                                 .layout = optimizer.state});
  if (optimizer.buffers) bytes.optimizer += optimizer.buffers(layout.units);
  return bytes;
}

// Everything but what the model itself takes for a micro-batch.
MemoryPlan plan_of(const StateBytes& state, const PlanRequest& r) {
  const int64_t control = (r.on_cpu ? 1 + kResults : 1) * kControlBytes;
  MemoryPlan plan;
  plan.host = r.on_cpu ? 0 : state.offloaded + batch_bytes(r) + kResults * kControlBytes;
  plan.parts = {{"parameters", state.parameters},
                {"gradients", state.gradients},
                {"optimizer", state.optimizer},
                {"optimizer on the host", r.on_cpu ? state.offloaded : 0},
                {"whole units", state.buffers},
                {"batches", control + batch_bytes(r)},
                {"collectives", std::max(state.clones_in_blocks, state.clones_between)}};
  return plan;
}

void add_parts(MemoryPlan& plan, std::vector<std::pair<std::string, int64_t>> parts) {
  for (auto& part : parts) plan.parts.push_back(std::move(part));
  for (const auto& [name, bytes] : plan.parts) plan.peak += bytes;
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const PlanRequest& r) {
  const DecoderLayout layout(config, r.adapters);
  const StateBytes state = state_of({layout.units(), layout.resident_units(), layout.frozen_units(),
                                     layout.resident_frozen_units()},
                                    r);
  const c10::ScalarType dtype = r.state.compute_dtype;
  const BufferTable buffers(config,
                            {.dtype = dtype,
                             .recompute = parse_recompute(r.recompute),
                             .device = r.on_cpu ? at::kCPU : at::kCUDA,
                             .threads = r.threads,
                             .adapters = adapter_sizes(config, DecoderLayout(config, r.adapters))},
                            r.micro_batch);
  const int64_t activations = buffers.nbytes(Lifetime::kHidden) + buffers.nbytes(Lifetime::kLayer) +
                              buffers.nbytes(Lifetime::kBlock);
  MemoryPlan plan = plan_of(state, r);
  add_parts(plan, {{"activations", activations},
                   {"labelled tokens", buffers.nbytes(Lifetime::kHead)},
                   {"logits", buffers.nbytes(Buffer::kLogits)},
                   {"products and sums", buffers.nbytes(Buffer::kScratch)},
                   // cos and sin of the longest conversation
                   {"angles", 4 * r.micro_batch.longest * config.head_dim}});
  plan.outside = r.on_cpu ? plan_attention_tiles(config, r.micro_batch, r.threads)
                          : plan_library_attention(
                                config, dtype, r.micro_batch,
                                {.deterministic = at::globalContext().deterministicAlgorithms(),
                                 .use_cudnn = r.use_cudnn});
  return plan;
}

MemoryPlan plan_called_memory(const CalledLayout& layout, const PlanRequest& r) {
  const size_t resident_frozen = layout.frozen.empty() ? 0 : 1;
  MemoryPlan plan = plan_of(state_of({layout.units, 1, layout.frozen, resident_frozen}, r), r);
  add_parts(plan, {{"activations", 0}, {"labelled tokens", 0}, {"logits", 0}});
  return plan;
}

}  // namespace fastsft
