#include "model/layout.h"

#include "core/error.h"

namespace fastsft {
namespace {

ParamSlot matrix(std::string name, int64_t rows, int64_t columns) {
  return {.name = std::move(name), .shape = {rows, columns}, .offset = 0, .decay = true};
}

// Norms and biases do not decay (docs/spec/trainer_semantics.md, section 10.1).
ParamSlot vector(std::string name, int64_t size) {
  return {.name = std::move(name), .shape = {size}, .offset = 0, .decay = false};
}

std::string block_prefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

std::vector<ParamGroup> block_biases(const ModelConfig& c, const std::string& attention,
                                     const std::string& mlp) {
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  std::vector<ParamGroup> groups;
  if (c.qkv_bias) {
    groups.push_back(
        {{vector(attention + "q_proj.bias", c.query_size()), vector(attention + "k_proj.bias", kv),
          vector(attention + "v_proj.bias", kv)}});
  }
  if (c.output_bias) groups.push_back({{vector(attention + "o_proj.bias", c.hidden_size)}});
  if (c.mlp_bias) {
    groups.push_back({{vector(mlp + "gate_proj.bias", c.intermediate_size),
                       vector(mlp + "up_proj.bias", c.intermediate_size)}});
    groups.push_back({{vector(mlp + "down_proj.bias", c.hidden_size)}});
  }
  return groups;
}

ParamUnit block_unit_of(const ModelConfig& c, int64_t layer) {
  const std::string prefix = block_prefix(layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  std::vector<ParamGroup> groups = {
      {{matrix(attention + "q_proj.weight", c.query_size(), c.hidden_size),
        matrix(attention + "k_proj.weight", kv, c.hidden_size),
        matrix(attention + "v_proj.weight", kv, c.hidden_size)}},
      {{matrix(attention + "o_proj.weight", c.hidden_size, c.query_size())}},
      {{matrix(mlp + "gate_proj.weight", c.intermediate_size, c.hidden_size),
        matrix(mlp + "up_proj.weight", c.intermediate_size, c.hidden_size)}},
      {{matrix(mlp + "down_proj.weight", c.hidden_size, c.intermediate_size)}},
      {{vector(prefix + "input_layernorm.weight", c.hidden_size)}},
      {{vector(prefix + "post_attention_layernorm.weight", c.hidden_size)}}};
  if (c.qk_norm) {
    groups.push_back({{vector(attention + "q_norm.weight", c.head_dim),
                       vector(attention + "k_norm.weight", c.head_dim)}});
  }
  for (auto& biases : block_biases(c, attention, mlp)) groups.push_back(std::move(biases));
  return ParamUnit("block." + std::to_string(layer), std::move(groups));
}

ParamRef ref(const ParamUnit& unit, const std::string& name, int64_t rows, int64_t columns) {
  return {.offset = unit.slot(name).offset, .rows = rows, .columns = columns};
}

}  // namespace

DecoderLayout::DecoderLayout(const ModelConfig& config) : tied_(config.tie_word_embeddings) {
  const ParamGroup embedding{
      {matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)}};
  const ParamGroup final_norm{{vector("model.norm.weight", config.hidden_size)}};
  if (tied_)
    units_.emplace_back("embedding_and_head", std::vector<ParamGroup>{embedding, final_norm});
  else
    units_.emplace_back("embedding", std::vector<ParamGroup>{embedding});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    units_.push_back(block_unit_of(config, layer));
  }
  if (tied_) return;
  const ParamGroup head{{matrix("lm_head.weight", config.vocab_size, config.hidden_size)}};
  units_.emplace_back("head", std::vector<ParamGroup>{final_norm, head});
}

int64_t DecoderLayout::num_parameters() const {
  int64_t sum = 0;
  for (const auto& unit : units_) {
    for (const auto& slot : unit.slots()) sum += slot.numel();
  }
  return sum;
}

at::Tensor ParamRef::view(const at::Tensor& flat) const {
  if (columns == 0) return flat.narrow(0, offset, rows);
  return flat.narrow(0, offset, rows * columns).view({rows, columns});
}

BlockRefs block_refs(const ModelConfig& c, const ParamUnit& unit) {
  // The block's number is in its name: "block.<layer>".
  const int64_t layer = std::stoll(unit.name().substr(6));
  const std::string prefix = block_prefix(layer);
  const auto optional = [&](bool present, const std::string& name, int64_t rows,
                            int64_t columns) -> std::optional<ParamRef> {
    if (!present) return std::nullopt;
    return ref(unit, prefix + name, rows, columns);
  };
  return {
      .qkv = ref(unit, prefix + "self_attn.q_proj.weight", c.qkv_size(), c.hidden_size),
      .output = ref(unit, prefix + "self_attn.o_proj.weight", c.hidden_size, c.query_size()),
      .gate_up = ref(unit, prefix + "mlp.gate_proj.weight", 2 * c.intermediate_size, c.hidden_size),
      .down = ref(unit, prefix + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size),
      .input_norm = ref(unit, prefix + "input_layernorm.weight", c.hidden_size, 0),
      .post_norm = ref(unit, prefix + "post_attention_layernorm.weight", c.hidden_size, 0),
      .qkv_bias = optional(c.qkv_bias, "self_attn.q_proj.bias", c.qkv_size(), 0),
      .output_bias = optional(c.output_bias, "self_attn.o_proj.bias", c.hidden_size, 0),
      .gate_up_bias = optional(c.mlp_bias, "mlp.gate_proj.bias", 2 * c.intermediate_size, 0),
      .down_bias = optional(c.mlp_bias, "mlp.down_proj.bias", c.hidden_size, 0),
      .qk_norm = optional(c.qk_norm, "self_attn.q_norm.weight", 2, c.head_dim),
      .window = c.windows[static_cast<size_t>(layer)]};
}

HeadRefs head_refs(const ModelConfig& c, const DecoderLayout& layout) {
  const ParamUnit& embedding = layout.units()[layout.embedding_unit()];
  const ParamUnit& head = layout.units()[layout.head_unit()];
  const char* head_name = layout.tied() ? "model.embed_tokens.weight" : "lm_head.weight";
  return {.embedding = ref(embedding, "model.embed_tokens.weight", c.vocab_size, c.hidden_size),
          .head = ref(head, head_name, c.vocab_size, c.hidden_size),
          .norm = ref(head, "model.norm.weight", c.hidden_size, 0)};
}

}  // namespace fastsft
