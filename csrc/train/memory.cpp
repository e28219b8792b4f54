#include "train/memory.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "data/batch_upload.h"
#include "model/activation_buffers.h"
#include "model/fp8_products.h"
#include "model/fp8_weights.h"
#include "model/layout.h"
#include "model/offloaded_inputs.h"
#include "ops/gradient/step_scalars.h"
#include "optim/optimizer.h"
#include "shard/strategy.h"

namespace fastsft {
namespace {

// Returns the bytes for two upload blocks (batch_upload.h), each with a quarter more than needed.
int64_t batch_bytes(const PlanRequest& r) {
  return most_packed_bytes(r.step_tokens, r.step_labels, r.micro_batches) * 5 / 2;
}

// Bytes that a step's scalars take, on the device and in each result in flight.
constexpr int64_t kStepScalarBytes = kNumStepScalars * static_cast<int64_t>(sizeof(double));
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

// Returns the plan without the model's own memory for a micro-batch.
MemoryPlan plan_of(const StateBytes& state, const PlanRequest& r) {
  const int64_t scalars = (r.on_cpu ? 1 + kResults : 1) * kStepScalarBytes;
  MemoryPlan plan;
  plan.host = r.on_cpu ? 0 : state.offloaded + batch_bytes(r) + kResults * kStepScalarBytes;
  plan.parts = {{"parameters", state.parameters},
                {"gradients", state.gradients},
                {"optimizer", state.optimizer},
                {"optimizer on the host", r.on_cpu ? state.offloaded : 0},
                {"whole units", state.buffers},
                {"batches", scalars + batch_bytes(r)},
                {"collectives", std::max(state.clones_in_blocks, state.clones_between)}};
  return plan;
}

int64_t offloaded_input_bytes(const ModelConfig& config, const DecoderLayout& layout,
                              const PlanRequest& r) {
  if (!r.state.offload_inputs) return 0;
  const int64_t lowest = std::max<int64_t>(lowest_trained_layer(config, layout), 0);
  return OffloadedInputs::count(lowest, config.num_layers) * r.micro_batch.tokens *
         config.hidden_size * r.state.itemsize();
}

void add_parts(MemoryPlan& plan, std::vector<std::pair<std::string, int64_t>> parts) {
  for (auto& part : parts) plan.parts.push_back(std::move(part));
  for (const auto& [name, bytes] : plan.parts) plan.peak += bytes;
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const PlanRequest& r) {
  const DecoderLayout layout(config, r.adapters);
  StateBytes state = state_of({layout.units(), layout.resident_units(), layout.frozen_units(),
                               layout.resident_frozen_units()},
                              r);
  const Fp8Recipe fp8 = Fp8Recipe::of(r.state, config);
  if (r.state.keep_fp8_weights) state.parameters += Fp8Weights::plan(config, layout, fp8);
  const c10::ScalarType dtype = r.state.compute_dtype;
  check_offloaded_inputs(parse_recompute(r.recompute), r.state.offload_inputs);
  check_tiles(config, r.state.tile_tokens);
  const ContextHeads heads(config, r.state.context_parallel_size);
  MicroBatchSize micro_batch = r.micro_batch;
  if (heads.ranks() > 1) micro_batch.context_tokens = heads.ranks() * micro_batch.tokens;
  const BufferTable buffers(config,
                            {.dtype = dtype,
                             .recompute = parse_recompute(r.recompute),
                             .device = r.on_cpu ? at::kCPU : at::kCUDA,
                             .threads = r.threads,
                             .adapters = adapter_sizes(config, DecoderLayout(config, r.adapters)),
                             .tile_tokens = r.state.tile_tokens,
                             .offload_inputs = r.state.offload_inputs,
                             .fp8 = fp8.is_used(),
                             .fp8_wgrad = fp8.wgrad && trains_linears(config, layout),
                             .keep_fp8_weights = r.state.keep_fp8_weights,
                             .context_ranks = heads.ranks()},
                            micro_batch);
  const int64_t activations = buffers.nbytes(Lifetime::kHidden) + buffers.nbytes(Lifetime::kLayer) +
                              buffers.nbytes(Lifetime::kBlock);
  MemoryPlan plan = plan_of(state, r);
  const int64_t inputs = offloaded_input_bytes(config, layout, r);
  if (!r.on_cpu) plan.host += inputs;
  add_parts(plan, {{"activations", activations},
                   {"inputs on the host", r.on_cpu ? inputs : 0},
                   {"labelled tokens", buffers.nbytes(Lifetime::kHead)},
                   {"logits", buffers.nbytes(Buffer::kLogits)},
                   {"products and sums", buffers.nbytes(Buffer::kScratch)},
                   // cos and sin for the longest conversation
                   {"angles", 4 * r.micro_batch.longest * config.head_dim}});
  plan.outside = r.on_cpu ? plan_attention_tiles(config, r.micro_batch, r.threads)
                          : plan_library_attention(
                                heads.of_rank(config), dtype, micro_batch,
                                {.deterministic = at::globalContext().deterministicAlgorithms(),
                                 .use_cudnn = r.use_cudnn});
  return plan;
}

MemoryPlan plan_generic_memory(const GenericLayout& layout, const PlanRequest& r) {
  require(r.state.fp8 == Fp8Scaling::kNone, kNoGenericFp8);
  require(r.state.context_parallel_size == 1, kNoGenericContext);
  const size_t resident_frozen = layout.frozen.empty() ? 0 : 1;
  MemoryPlan plan = plan_of(state_of({layout.units, 1, layout.frozen, resident_frozen}, r), r);
  add_parts(plan, {{"activations", 0}, {"labelled tokens", 0}, {"logits", 0}});
  return plan;
}

namespace {

// torch uses the allocator with the highest priority.
constexpr uint8_t kPriority = 100;

std::atomic<int64_t> held_bytes{0}, peak_bytes{0}, pieces{0};

int64_t size_of(void* data) { return static_cast<int64_t>(::malloc_usable_size(data)); }

void give_back(void* data) {
  if (data == nullptr) return;
  held_bytes -= size_of(data);
  c10::free_cpu(data);
}

// Torch's CPU allocation with counters. A pointer's context is the pointer itself, because
// oneDNN asks for plain memory (raw_allocate) and keeps using this allocator after `stop`.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    if (data == nullptr) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    ++pieces;
    const int64_t now = held_bytes += size_of(data);
    int64_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

  c10::Allocator* inner = nullptr;  // torch's own allocator while this allocator replaces it
};

// Returns the allocator, which is never destroyed: tensors may outlive the meter.
CountingAllocator& counting() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

}  // namespace

void AllocationMeter::start() {
  require(counting().inner == nullptr, "the allocation meter is running; stop it first");
  counting().inner = c10::GetCPUAllocator();
  held_bytes = peak_bytes = pieces = 0;
  c10::SetCPUAllocator(&counting(), kPriority);
}

void AllocationMeter::stop() {
  require(counting().inner != nullptr, "the allocation meter is not running; start it first");
  c10::SetCPUAllocator(counting().inner, kPriority);
  counting().inner = nullptr;
}

int64_t AllocationMeter::count() { return pieces; }
int64_t AllocationMeter::held() { return held_bytes; }
int64_t AllocationMeter::peak() { return peak_bytes; }

}  // namespace fastsft
