#include "model/op_memory.h"

#include <algorithm>

#include "model/fp8_products.h"
#include "ops/attention/attention_choice.h"
#include "ops/cpu/parallel.h"
#include "ops/gemm/float_gemm.h"
#include "ops/grouped_gemm/grouped_memory.h"
#include "ops/linear_cross_entropy/logits_workspace.h"

namespace fastsft {
namespace {

int64_t itemsize(c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Returns the scratch floats that a layer's GEMM y = x W^T needs in forward and for both gradients.
// W's gradient is float32 or has the compute dtype.
int64_t largest_product(c10::ScalarType dtype, int64_t tokens, int64_t inputs, int64_t outputs) {
  return std::max({cpu::gemm_floats(tokens, inputs, outputs, dtype),
                   cpu::gemm_floats(outputs, tokens, inputs, c10::ScalarType::Float),
                   cpu::gemm_floats(outputs, tokens, inputs, dtype),
                   cpu::gemm_floats(tokens, outputs, inputs, dtype)});
}

// Returns the scratch floats for an expert's linear on all threads (grouped_gemm_cpu.cpp). An
// expert gets up to all tokens.
int64_t expert_product(c10::ScalarType dtype, int64_t tokens, int64_t inputs, int64_t outputs,
                       int64_t threads) {
  const int64_t columns = outputs / threads + 1;
  return threads * std::max({cpu::grouped_floats(tokens, inputs, outputs, dtype),
                             cpu::grouped_floats(tokens, outputs, inputs, dtype),
                             cpu::grouped_floats(columns, tokens, inputs, c10::ScalarType::Float),
                             cpu::grouped_floats(columns, tokens, inputs, dtype)});
}

int64_t mlp_products(const ModelConfig& c, c10::ScalarType dtype, int64_t tokens, int64_t threads) {
  const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  if (c.is_mixture()) {
    return std::max({expert_product(dtype, tokens, hidden, 2 * inner, threads),
                     expert_product(dtype, tokens, inner, hidden, threads),
                     largest_product(dtype, tokens, hidden, c.mixture.experts)});
  }
  return std::max(largest_product(dtype, tokens, hidden, 2 * inner),
                  largest_product(dtype, tokens, inner, hidden));
}

int64_t block_products(const ModelConfig& c, c10::ScalarType dtype, int64_t tokens,
                       int64_t threads) {
  return std::max({largest_product(dtype, tokens, c.hidden_size, c.qkv_size()),
                   largest_product(dtype, tokens, c.query_size(), c.hidden_size),
                   mlp_products(c, dtype, tokens, threads)});
}

// Returns the scratch floats for a block's 8-bit products, whose operands are always widened.
int64_t fp8_products(const ModelConfig& c, int64_t tokens, bool wgrad) {
  int64_t most = 0;
  for (const LinearGroup group : kBlockLinearGroups) {
    const auto linears = linears_of(c, group);
    const int64_t inputs = linears.front().inputs, outputs = outputs_of(linears);
    most = std::max({most, cpu::widened_floats(tokens, inputs, outputs, /*narrow_out=*/true),
                     cpu::widened_floats(tokens, outputs, inputs, /*narrow_out=*/true)});
    if (!wgrad) continue;
    for (const bool narrow_out : {false, true}) {
      most = std::max(most, cpu::widened_floats(outputs, fp8_padded(tokens), inputs, narrow_out));
    }
  }
  return most;
}

// Returns the scratch floats for a chunk of 16-bit logits and their losses.
int64_t head_and_losses(const ModelConfig& c, c10::ScalarType dtype, int64_t rows,
                        int64_t threads) {
  return std::max({cpu::loss_row_floats(c.vocab_size, threads),
                   cpu::gemm_floats(rows, c.hidden_size, c.vocab_size, dtype),
                   cpu::gemm_floats(rows, c.vocab_size, c.hidden_size, dtype),
                   cpu::gemm_floats(c.vocab_size, rows, c.hidden_size, c10::ScalarType::Float)});
}

// Returns the scratch floats for adapters on linears with `inputs` columns. Their GEMMs use all
// ranks together or a single adapter's rank, so all smaller ranks are tried.
int64_t adapter_products(c10::ScalarType dtype, int64_t tokens, int64_t inputs, int64_t rank,
                         int64_t outputs) {
  if (rank == 0) return 0;
  int64_t most = 0;
  for (int64_t r = 1; r <= rank; ++r) {
    most = std::max({most, largest_product(dtype, tokens, inputs, r),
                     largest_product(dtype, tokens, r, outputs)});
  }
  return most;
}

int64_t adapter_products(const ModelConfig& c, c10::ScalarType dtype, int64_t tokens,
                         const AdapterSizes& sizes) {
  int64_t most = 0;
  for (const Linear& each : linears_of(c)) {
    if (each.group == LinearGroup::kHead) continue;
    most = std::max(
        most, adapter_products(dtype, tokens, each.inputs, sizes.rank(each.group), each.outputs));
  }
  return most;
}

int64_t head_adapter_products(const ModelConfig& c, c10::ScalarType dtype, int64_t labels,
                              int64_t rows, int64_t rank) {
  if (rank == 0) return 0;
  return std::max({largest_product(dtype, labels, c.hidden_size, rank),
                   cpu::gemm_floats(rows, rank, c.vocab_size, dtype),
                   cpu::gemm_floats(rows, c.vocab_size, rank, dtype),
                   cpu::gemm_floats(c.vocab_size, rows, rank, c10::ScalarType::Float)});
}

}  // namespace

int64_t plan_scratch(const ModelConfig& c, c10::ScalarType dtype, const MicroBatchSize& shape,
                     int64_t tile_rows, int64_t threads, const AdapterSizes& adapters, bool fp8,
                     bool fp8_wgrad) {
  // The longest vector with a gradient that is summed over tokens.
  const int64_t widest =
      std::max({c.hidden_size, c.qkv_bias ? c.qkv_size() : 0,
                c.mlp_bias ? 2 * c.intermediate_size : 0, c.qk_norm ? 2 * c.head_dim : 0});
  const int64_t sums = cpu::row_parts_floats(widest, threads);
  if (dtype == c10::ScalarType::Float) return sums;
  const int64_t rows = std::min(shape.labels, cpu::logit_chunk_limit(c.vocab_size));
  return std::max(
      {sums, head_and_losses(c, dtype, rows, threads), block_products(c, dtype, tile_rows, threads),
       fp8 ? fp8_products(c, tile_rows, fp8_wgrad) : 0,
       adapter_products(c, dtype, tile_rows, adapters),
       head_adapter_products(c, dtype, shape.labels, rows, adapters.rank(AdapterGroup::kHead))});
}

int64_t plan_attention_tiles(const ModelConfig& c, const MicroBatchSize& shape, int64_t threads) {
  constexpr int64_t kQueryRows = 48;
  const int64_t slopes = c.attention_softcap > 0 ? 1 : 0;  // soft limit's slopes, a row
  return threads * shape.longest * 4 * (6 * c.head_dim + 2 * kQueryRows + slopes);
}

int64_t plan_library_attention(const ModelConfig& c, c10::ScalarType dtype,
                               const MicroBatchSize& shape, const LibraryOptions& options) {
  constexpr int64_t kTile = 128, kMultiprocessors = 192;  // upper limit; Hopper has 132
  // Upper limit for the padded rows, if conversations have at least 128 tokens (a tile) on average.
  const int64_t tokens = shape.attended(), padded = 2 * tokens + kTile;
  const int64_t forward = tokens * (itemsize(dtype) * c.query_size() + 4 * c.num_heads);
  const int64_t grouped = c.num_heads == c.num_key_value_heads ? 0 : 2 * c.query_size();
  const int64_t gradients = tokens * itemsize(dtype) * (c.qkv_size() + grouped);
  const int64_t conversations = tokens / std::max<int64_t>(shape.longest, 1);
  const int64_t blocks = std::max<int64_t>(conversations, 1) * c.num_heads;
  const int64_t copies = options.deterministic ? (kMultiprocessors + blocks - 1) / blocks : 1;
  const int64_t backward = gradients + 4 * padded * (copies * c.query_size() + c.num_heads);
  const int64_t cudnn =
      options.use_cudnn
          ? cuda::cudnn_workspace_limit(tokens, c.num_heads, c.num_key_value_heads, c.head_dim)
          : 0;
  return std::max({forward, backward, cudnn});
}

}  // namespace fastsft
