#include "model/activation_plan.h"

#include <algorithm>

#include "ops/cpu/logit_chunks.h"
#include "ops/cpu/widened_product.h"
#include "ops/cuda/logits_plan.h"

namespace fastsft {
namespace {

int64_t itemsize(c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Bytes of a token: what a layer keeps under every policy, ...
int64_t attention_row(const ModelConfig& c, int64_t size) {
  return size * (c.qkv_size() + c.query_size() + c.hidden_size) + 4 * (c.num_heads + 2);
}
// ... and what backward makes again under some.
int64_t gate_up_row(const ModelConfig& c, int64_t size) { return size * 2 * c.intermediate_size; }
int64_t products_row(const ModelConfig& c, int64_t size) {
  return size * (2 * c.hidden_size + c.intermediate_size);
}

// Scratch of the products y = x W^T of a layer, forward and both gradients.
int64_t largest_product(int64_t tokens, int64_t inputs, int64_t outputs) {
  return std::max({cpu::widened_bytes(tokens, inputs, outputs, true),
                   cpu::widened_bytes(outputs, tokens, inputs, false),
                   cpu::widened_bytes(tokens, outputs, inputs, true)});
}

int64_t block_products(const ModelConfig& c, int64_t tokens) {
  return std::max({largest_product(tokens, c.hidden_size, c.qkv_size()),
                   largest_product(tokens, c.query_size(), c.hidden_size),
                   largest_product(tokens, c.hidden_size, 2 * c.intermediate_size),
                   largest_product(tokens, c.intermediate_size, c.hidden_size)});
}

// One chunk: logits in float32 out, their bfloat16 copy beside the two gradients.
int64_t head_products(const ModelConfig& c, int64_t rows) {
  const int64_t forward = cpu::widened_bytes(rows, c.hidden_size, c.vocab_size, false);
  const int64_t backward = std::max(cpu::widened_bytes(rows, c.vocab_size, c.hidden_size, true),
                                    cpu::widened_bytes(c.vocab_size, rows, c.hidden_size, false));
  return std::max(forward, 2 * rows * c.vocab_size + backward);
}

}  // namespace

ActivationBytes plan_activations(const ModelConfig& c, c10::ScalarType dtype, Recompute recompute,
                                 const MicroBatchShape& shape) {
  const int64_t size = itemsize(dtype), stream = size * c.hidden_size;
  const int64_t slots = recompute == Recompute::kBlock ? 1 : c.num_layers;
  const bool keeps_products = recompute == Recompute::kNone;
  int64_t kept = (c.num_layers + 1) * stream + slots * attention_row(c, size);
  kept += (recompute == Recompute::kGateUp ? 1 : slots) * gate_up_row(c, size);
  if (keeps_products) kept += slots * products_row(c, size);

  // "projected", "activated", "normed" and "recomputed"
  int64_t shared = size * std::max(c.hidden_size, c.query_size());
  shared += size * (keeps_products ? c.qkv_size() : std::max(c.intermediate_size, c.qkv_size()));
  if (!keeps_products) shared += stream;
  if (recompute == Recompute::kBlock) shared += stream;
  if (c.qk_norm)  // "rotated" and "head_rstd"
    shared += size * c.qkv_size() + 4 * (c.num_heads + c.num_key_value_heads);
  return {.kept = shape.tokens * kept,
          .shared = shape.tokens * shared,
          .head = shape.labels * (3 * stream + 4)};
}

WorkspaceBytes plan_workspaces(const ModelConfig& c, c10::ScalarType dtype,
                               const MicroBatchShape& shape, int64_t threads) {
  constexpr int64_t kQueryRows = 48;
  const int64_t rows = cpu::logit_chunk_rows(shape.labels, c.vocab_size);
  const bool narrow = dtype != c10::ScalarType::Float;
  return {.logits = 4 * rows * c.vocab_size,
          .in_head = narrow ? head_products(c, rows) : 0,
          .in_blocks = narrow ? block_products(c, shape.tokens) : 0,
          .attention = threads * shape.longest * 4 * (6 * c.head_dim + 2 * kQueryRows)};
}

int64_t plan_cuda_logits(const ModelConfig& c, c10::ScalarType dtype, int64_t labels) {
  const cuda::LogitsPlan chunk = cuda::plan_logits(labels, c.vocab_size);
  const int64_t gradient = dtype == c10::ScalarType::Float ? 0 : itemsize(dtype);
  return chunk.rows * chunk.stride * (4 + gradient) + 8 * labels;
}

}  // namespace fastsft
