#include "model/block_activations.h"

#include <algorithm>

namespace fastsft {

BlockActivations block_activations(ActivationBuffers& buffers, const ModelConfig& config,
                                   const BlockRefs& refs, const at::Tensor& input, int64_t layer) {
  const auto get = [&](Buffer name) { return buffers.get(name, layer); };
  const auto branch = [&](Buffer name) { return config.branch_norms ? get(name) : at::Tensor(); };
  const auto exchanged = [&](Buffer name) { return buffers.has(name) ? get(name) : at::Tensor(); };
  const auto adapters = [&](const AdapterRefs& group, Buffer name) {
    if (group.empty()) return at::Tensor();
    return packed_rows(get(name), input.size(0), group.a.rows);
  };
  return {.input = input,
          .attn_norm_rstd = get(Buffer::kInputRstd),
          .qkv = get(Buffer::kQkv),
          .attn_out = get(Buffer::kAttention),
          .lse = get(Buffer::kLse),
          .attn_residual = get(Buffer::kAttnResidual),
          .mlp_norm_rstd = get(Buffer::kPostRstd),
          .gate_up = get(Buffer::kGateUp),
          .attn_norm_out = get(Buffer::kInputNorm),
          .mlp_norm_out = get(Buffer::kPostNorm),
          .activated = get(Buffer::kActivated),
          .heads_qkv = exchanged(Buffer::kHeadsQkv),
          .heads_out = exchanged(Buffer::kHeadsOut),
          .attention_branch = branch(Buffer::kAttentionBranch),
          .attention_rstd = branch(Buffer::kAttentionRstd),
          .mlp_branch = branch(Buffer::kMlpBranch),
          .mlp_rstd = branch(Buffer::kMlpRstd),
          .mixture = mixture_activations(config, buffers, layer),
          .qkv_adapters = adapters(refs.qkv_adapters, Buffer::kQkvAdapters),
          .output_adapters = adapters(refs.output_adapters, Buffer::kOutputAdapters),
          .gate_up_adapters = adapters(refs.gate_up_adapters, Buffer::kGateUpAdapters),
          .down_adapters = adapters(refs.down_adapters, Buffer::kDownAdapters)};
}

std::vector<Rows> tiles_of(int64_t tokens, int64_t most) {
  const int64_t count = most > 0 ? std::max<int64_t>((tokens + most - 1) / most, 1) : 1;
  std::vector<Rows> tiles;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = tokens * i / count;
    tiles.push_back({begin, tokens * (i + 1) / count - begin});
  }
  return tiles;
}

BlockActivations rows_of(const BlockActivations& whole, const Rows& rows) {
  const auto of_tile = [&](const at::Tensor& tensor) {
    const bool is_kept = tensor.size(0) == whole.input.size(0);
    return is_kept ? rows.of(tensor) : tensor.narrow(0, 0, rows.count);
  };
  return {.input = rows.of(whole.input),
          .attn_norm_rstd = rows.of(whole.attn_norm_rstd),
          .qkv = rows.of(whole.qkv),
          .attn_out = rows.of(whole.attn_out),
          .lse = whole.lse,
          .attn_residual = rows.of(whole.attn_residual),
          .mlp_norm_rstd = rows.of(whole.mlp_norm_rstd),
          .gate_up = of_tile(whole.gate_up),
          .attn_norm_out = of_tile(whole.attn_norm_out),
          .mlp_norm_out = of_tile(whole.mlp_norm_out),
          .activated = of_tile(whole.activated),
          .heads_qkv = whole.heads_qkv,
          .heads_out = whole.heads_out,
          .attention_branch = rows.of(whole.attention_branch),
          .attention_rstd = rows.of(whole.attention_rstd),
          .mlp_branch = rows.of(whole.mlp_branch),
          .mlp_rstd = rows.of(whole.mlp_rstd),
          .mixture = whole.mixture,  // a mixture has one tile
          .qkv_adapters = rows.of(whole.qkv_adapters),
          .output_adapters = rows.of(whole.output_adapters),
          .gate_up_adapters = rows.of(whole.gate_up_adapters),
          .down_adapters = rows.of(whole.down_adapters)};
}

at::Tensor packed_rows(const at::Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.view({-1}).narrow(0, 0, rows * columns).view({rows, columns});
}

}  // namespace fastsft
