#include "model/text_decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.h"
#include "model/mixture.h"
#include "ops/bias/bias.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace fastsft {
namespace {

constexpr int64_t kPiece = 512;           // tokens of a prompt that are computed together
constexpr int64_t kFirstCapacity = 1024;  // tokens; the capacity doubles when it is reached

// Computes out = x @ weight.T. For a single row on the CPU, ATen's matrix-vector product is a fifth
// faster than oneDNN's GEMM.
void multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  const bool is_row = x.size(0) == 1 && x.is_cpu() && x.scalar_type() == at::kFloat;
  if (!is_row) return gemm(x, weight, out, false, true, 0.0);
  at::Tensor row = out.view({-1});
  at::mv_out(row, weight, x.view({-1}));
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<ParamRef>& bias, const at::Tensor& flat) {
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  multiply(x, weight, out);
  if (bias) add_bias(out, bias->view(flat));
  return out;
}

// Returns a mask: true if a query in [begin, begin + queries) sees a key in [first, first + keys).
at::Tensor visible(int64_t begin, int64_t queries, int64_t first, int64_t keys, int64_t window,
                   at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor query = at::arange(begin, begin + queries, options).unsqueeze(1);
  const at::Tensor key = at::arange(first, first + keys, options).unsqueeze(0);
  const at::Tensor causal = key.le(query);
  return window == 0 ? causal : causal.logical_and(key.gt(query.sub(window)));
}

// Computes scaled_dot_product_attention with the model's soft limit, which torch's function lacks.
// query [1, heads, T, D], keys and values [1, kv_heads, S, D], mask [T, S].
at::Tensor capped_attention(const at::Tensor& query, const at::Tensor& keys,
                            const at::Tensor& values, const std::optional<at::Tensor>& mask,
                            const ModelConfig& c) {
  const int64_t group = c.num_heads / c.num_key_value_heads, tokens = query.size(2);
  const auto grouped = query.reshape({c.num_key_value_heads, group * tokens, c.head_dim});
  const at::Tensor transposed = keys.squeeze(0).transpose(1, 2).to(at::kFloat);
  at::Tensor scores = at::bmm(grouped.to(at::kFloat), transposed).mul_(c.attention_scale);
  cap_values(scores, c.attention_softcap);
  if (mask) {
    scores.view({c.num_key_value_heads, group, tokens, keys.size(2)})
        .masked_fill_(mask->logical_not(), -std::numeric_limits<float>::infinity());
  }
  const at::Tensor weights = scores.softmax(-1).to(query.scalar_type());
  return at::bmm(weights, values.squeeze(0)).view({1, c.num_heads, tokens, c.head_dim});
}

}  // namespace

TextDecoder::TextDecoder(const ModelConfig& config, at::ScalarType dtype, at::Device device)
    : config_(config),
      dtype_(dtype),
      device_(device),
      layout_(config),
      head_(head_refs(config, layout_)),
      caches_(static_cast<size_t>(config.num_layers)) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (const ParamUnit& unit : layout_.units()) {
    const at::Tensor weights = at::empty({unit.numel()}, options);
    states_.push_back({.unit = &unit, .begin = 0, .end = unit.numel(), .master = weights});
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(block_refs(config, layout_, layer));
  }
}

void TextDecoder::truncate(int64_t length) {
  require(length >= 0 && length <= length_, "expected a length from 0 to ", length_, ", got ",
          length);
  length_ = length;
}

at::Tensor TextDecoder::read(std::span<const int64_t> ids) {
  require(!ids.empty(), "expected at least one token, got none");
  for (const int64_t id : ids) {
    require(id >= 0 && id < config_.vocab_size, "token ", id, " is not in a vocabulary of ",
            config_.vocab_size);
  }
  reserve(length_ + static_cast<int64_t>(ids.size()));
  at::Tensor last;
  for (size_t begin = 0; begin < ids.size(); begin += kPiece) {
    last = read_piece(ids.subspan(begin, std::min<size_t>(kPiece, ids.size() - begin)));
  }
  const at::Tensor& weights = states_[*layout_.head().trained].master;
  const at::Tensor normed = norm(last, head_.norm.view(weights));
  const at::Tensor logits = at::empty({1, config_.vocab_size}, last.options().dtype(at::kFloat));
  multiply(normed, head_.head.view(weights), logits);
  cap_values(logits, config_.logit_softcap);
  return logits.view({-1});
}

void TextDecoder::reserve(int64_t positions) {
  check_positions(config_.rope, positions);
  if (positions <= capacity_) return;
  const int64_t capacity = std::max({positions, 2 * capacity_, kFirstCapacity});
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  for (Cache& cache : caches_) {
    for (at::Tensor* kept : {&cache.keys, &cache.values}) {
      const at::Tensor grown =
          at::zeros({config_.num_key_value_heads, capacity, config_.head_dim}, options);
      if (length_ > 0) grown.narrow(1, 0, length_).copy_(kept->narrow(1, 0, length_));
      *kept = grown;
    }
  }
  rope_ = make_rope_tables(config_, positions, capacity - positions, device_);
  capacity_ = capacity;
}

// Returns the last token's hidden states [1, hidden] after the last block.
at::Tensor TextDecoder::read_piece(std::span<const int64_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  const auto whole = at::TensorOptions().dtype(at::kLong);
  const at::Tensor tokens = at::tensor(at::IntArrayRef(ids.data(), ids.size()), whole).to(device_);
  const at::Tensor positions =
      at::arange(length_, length_ + count, at::TensorOptions().dtype(at::kInt).device(device_));
  const at::Tensor stream =
      at::empty({count, config_.hidden_size}, at::TensorOptions().dtype(dtype_).device(device_));
  embedding(head_.embedding.view(states_[*layout_.embedding().trained].master), tokens, stream);
  if (config_.embedding_scale != 1) stream.mul_(embedding_scale(config_, dtype_));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) block(layer, stream, positions);
  length_ += count;
  return stream.narrow(0, count - 1, 1);
}

// Runs a block in place, with the same formulas as block_forward (decoder_block.h).
void TextDecoder::block(int64_t layer, const at::Tensor& stream, const at::Tensor& positions) {
  const BlockRefs& refs = blocks_[static_cast<size_t>(layer)];
  const at::Tensor& weights = states_[*layout_.block(layer).trained].master;
  const int64_t rotated = config_.num_heads + config_.num_key_value_heads;
  const at::Tensor qkv = product(norm(stream, refs.input_norm.view(weights)),
                                 refs.qkv.view(weights), refs.qkv_bias, weights);
  if (refs.qk_norm) {
    const at::Tensor rstd =
        at::empty({stream.size(0), rotated}, stream.options().dtype(at::kFloat));
    qk_norm(qkv, refs.qk_norm->view(weights), config_.num_heads, config_.num_key_value_heads,
            config_.rms_norm_eps, qkv, rstd, config_.norm_offset);
  }
  const RopeTable& table = rope_.of(refs.window);
  rope(qkv, table.cos, table.sin, positions, rotated, false);
  const at::Tensor context = attend(layer, refs, qkv);
  add_branch(refs.attention_norm, weights,
             product(context, refs.output.view(weights), refs.output_bias, weights), stream);
  mlp(refs, weights, stream);
}

void TextDecoder::add_branch(const std::optional<ParamRef>& norm_ref, const at::Tensor& weights,
                             const at::Tensor& branch, const at::Tensor& stream) const {
  stream.add_(norm_ref ? norm(branch, norm_ref->view(weights)) : branch);
}

void TextDecoder::mixture(const BlockRefs& refs, const at::Tensor& flat,
                          const at::Tensor& stream) const {
  const MixtureConfig& mixture = config_.mixture;
  const int64_t tokens = stream.size(0), rows = config_.mlp_rows(tokens);
  const auto made = [&](at::IntArrayRef sizes) { return at::empty(sizes, stream.options()); };
  const auto numbers = [&](at::IntArrayRef sizes) {
    return at::empty(sizes, stream.options().dtype(at::kInt));
  };
  const MixtureActivations activations{.logits = made({tokens, mixture.experts}),
                                       .weights = made({tokens, mixture.chosen}),
                                       .chosen_experts = numbers({tokens, mixture.chosen}),
                                       .offsets = numbers({mixture.experts + 1}),
                                       .pairs = numbers({rows}),
                                       .rows = numbers({tokens, mixture.chosen}),
                                       .grouped = made({rows, config_.hidden_size}),
                                       .gate_up = made({rows, 2 * config_.intermediate_size}),
                                       .activated = made({rows, config_.intermediate_size})};
  mixture_forward(config_, mixture_weights(config_, refs, {.trained = flat, .frozen = {}}),
                  norm(stream, refs.post_norm.view(flat)), activations, stream, stream);
}

void TextDecoder::mlp(const BlockRefs& refs, const at::Tensor& weights, const at::Tensor& stream) {
  if (refs.router) return mixture(refs, weights, stream);
  const at::Tensor gate_up = product(norm(stream, refs.post_norm.view(weights)),
                                     refs.gate_up.view(weights), refs.gate_up_bias, weights);
  const at::Tensor activated =
      at::empty({stream.size(0), config_.intermediate_size}, stream.options());
  swiglu(gate_up, activated, config_.gelu);
  add_branch(refs.mlp_norm, weights,
             product(activated, refs.down.view(weights), refs.down_bias, weights), stream);
}

// Caches keys and values of `qkv` [tokens, qkv_size]. Returns the context [tokens, query_size].
at::Tensor TextDecoder::attend(int64_t layer, const BlockRefs& refs, const at::Tensor& qkv) {
  const int64_t tokens = qkv.size(0), end = length_ + tokens;
  const int64_t heads = config_.num_heads, kv_heads = config_.num_key_value_heads;
  const at::Tensor parts = qkv.view({tokens, heads + 2 * kv_heads, config_.head_dim});
  const Cache& cache = caches_[static_cast<size_t>(layer)];
  cache.keys.narrow(1, length_, tokens).copy_(parts.narrow(1, heads, kv_heads).transpose(0, 1));
  cache.values.narrow(1, length_, tokens)
      .copy_(parts.narrow(1, heads + kv_heads, kv_heads).transpose(0, 1));

  const int64_t first = refs.window == 0 ? 0 : std::max<int64_t>(0, length_ + 1 - refs.window);
  const at::Tensor query = parts.narrow(1, 0, heads).transpose(0, 1).unsqueeze(0);
  const auto seen = [&](const at::Tensor& kept) {
    return kept.narrow(1, first, end - first).unsqueeze(0);
  };
  std::optional<at::Tensor> mask;  // a single token sees all keys in the window
  if (tokens > 1) mask = visible(length_, tokens, first, end - first, refs.window, device_);
  const at::Tensor keys = seen(cache.keys), values = seen(cache.values);
  const at::Tensor context =
      config_.attention_softcap > 0
          ? capped_attention(query, keys, values, mask, config_)
          : at::scaled_dot_product_attention(query, keys, values, mask, 0.0, false,
                                             config_.attention_scale, heads != kv_heads);
  return context.squeeze(0).transpose(0, 1).reshape({tokens, config_.query_size()});
}

at::Tensor TextDecoder::norm(const at::Tensor& x, const at::Tensor& weight) const {
  const at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  rms_norm(x, std::nullopt, weight, config_.rms_norm_eps, std::nullopt, out, rstd,
           config_.norm_offset);
  return out;
}

}  // namespace fastsft
