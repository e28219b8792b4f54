#include "train/memory_plan.h"

#include <algorithm>

#include "core/error.h"
#include "model/layout.h"
#include "ops/control_slots.h"
#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Two blocks of batch_upload.h, each with half as much room again: ids and positions; label
// positions, targets and weights.
int64_t batch_bytes(const PlanRequest& r) { return 3 * (12 * r.step_tokens + 20 * r.step_labels); }

// The control block of the device and what it is copied to.
constexpr int64_t kControlBytes = 2 * kControlSize * static_cast<int64_t>(sizeof(double));

// cos and sin of the longest conversation.
int64_t rope_bytes(const ModelConfig& c, int64_t longest) { return 4 * longest * c.head_dim; }

int64_t itemsize(c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

StateBytes state_of(const ModelConfig& config, const PlanRequest& r) {
  require(r.node_size >= 0 && (r.node_size == 0 || r.world_size % r.node_size == 0),
          "node_size is ", r.node_size, ", expected 0 or a divisor of the ", r.world_size,
          " ranks");
  const DecoderLayout layout(config);
  return plan_state(r.strategy, {.units = layout.units(),
                                 .world_size = r.world_size,
                                 .node_size = r.node_size,
                                 .itemsize = itemsize(r.dtype),
                                 .grad_itemsize = itemsize(r.grad_dtype),
                                 .moment_itemsize = itemsize(r.optim_dtype),
                                 .split_master = r.split_master,
                                 .offload = r.offload,
                                 .resident_units = layout.tied() ? 1u : 0u,
                                 .cloned = r.on_cpu,
                                 .accumulates = r.micro_batches > 1});
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const PlanRequest& r) {
  const StateBytes state = state_of(config, r);
  const ActivationBytes kept =
      plan_activations(config, r.dtype, parse_recompute(r.recompute), r.micro_batch);
  const WorkspaceBytes work = plan_workspaces(config, r.dtype, r.micro_batch, r.threads);
  const int64_t products = r.on_cpu ? std::max(work.in_blocks, work.in_head) : 0;
  // Clones and widened operands come and go; the dearest moment counts.
  const int64_t in_blocks = state.clones_in_blocks + (r.on_cpu ? work.in_blocks : 0);
  const int64_t passing = std::max({in_blocks, products, state.clones_between});

  const int64_t logits =
      r.on_cpu ? work.logits : plan_cuda_logits(config, r.dtype, r.micro_batch.labels);

  MemoryPlan plan;
  plan.host = r.on_cpu ? 0 : state.offloaded + batch_bytes(r);
  plan.parts = {
      {"parameters", state.parameters},
      {"gradients", state.gradients},
      {"optimizer", state.optimizer},
      {"optimizer on the host", r.on_cpu ? state.offloaded : 0},
      {"whole units", state.buffers},
      {"activations", kept.kept + kept.shared},
      {"labelled tokens", kept.head},
      {"logits", logits},
      {"batches", kControlBytes + batch_bytes(r) + rope_bytes(config, r.micro_batch.longest)},
      {"collectives and products", passing}};
  for (const auto& [name, bytes] : plan.parts) plan.peak += bytes;
  plan.outside = r.on_cpu ? work.attention : 0;
  return plan;
}

}  // namespace fastsft
