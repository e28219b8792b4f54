#include "model/layout.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/mixture_layout.h"

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

std::vector<ParamGroup> block_groups(const ModelConfig& c, int64_t layer) {
  const std::string prefix = block_prefix(layer), attention = prefix + "self_attn.";
  std::vector<ParamGroup> groups;
  for (const LinearGroup group : kBlockLinearGroups) {
    if (linears_of(c, group).empty()) continue;
    ParamGroup& weights = groups.emplace_back();
    for (const Linear& each : linears_of(c, group)) {
      weights.slots.push_back(matrix(prefix + each.name + ".weight", each.outputs, each.inputs));
      weights.slots.back().linear = true;
    }
  }
  if (c.is_mixture()) {
    for (ParamGroup& group : mixture_groups(c, prefix)) groups.push_back(std::move(group));
  }
  groups.push_back({{vector(prefix + "input_layernorm.weight", c.hidden_size)}});
  groups.push_back({{vector(prefix + "post_attention_layernorm.weight", c.hidden_size)}});
  if (c.branch_norms) {
    groups.push_back({{vector(prefix + "pre_feedforward_layernorm.weight", c.hidden_size)}});
    groups.push_back({{vector(prefix + "post_feedforward_layernorm.weight", c.hidden_size)}});
  }
  if (c.qk_norm) {
    groups.push_back({{vector(attention + "q_norm.weight", c.head_dim),
                       vector(attention + "k_norm.weight", c.head_dim)}});
  }
  for (const LinearGroup group : kBlockLinearGroups) {
    if (!has_bias(c, group)) continue;
    ParamGroup& biases = groups.emplace_back();
    for (const Linear& each : linears_of(c, group)) {
      biases.slots.push_back(vector(prefix + each.name + ".bias", each.outputs));
    }
  }
  return groups;
}

// Decides which of the model's own tensors are trained.
class Selection {
 public:
  explicit Selection(const AdapterOptions& options)
      : all_(options.empty()), names_(options.trained.begin(), options.trained.end()) {}

  // True if the group is trained. The matrices of a fused group must all be trained or all be
  // frozen; untrained vectors in a trained group are marked `held`.
  bool trains(ParamGroup& group) {
    if (all_) return true;
    std::vector<ParamSlot*> left;
    for (auto& slot : group.slots) {
      if (names_.contains(slot.name))
        met_.insert(slot.name);
      else
        left.push_back(&slot);
    }
    if (left.size() == group.slots.size()) return false;
    for (ParamSlot* slot : left) {
      require(!slot->decay, "trained: \"", group.slots.front().name,
              "\" and its neighbours up to \"", group.slots.back().name,
              "\" are one matrix here, and \"", slot->name,
              "\" is not among those that are trained; train all of them or none");
      slot->held = true;
    }
    return true;
  }

  void check() const {
    for (const auto& name : names_) {
      require(met_.contains(name), "trained: the model has no tensor \"", name, "\"");
    }
  }

 private:
  bool all_;
  std::set<std::string> names_, met_;
};

// Adds a unit with the trained groups and a unit with the frozen groups. Returns their indices.
UnitPlace add_units(const std::string& name, std::vector<ParamGroup> groups,
                    std::vector<ParamGroup> adapters, Selection& selection,
                    std::vector<ParamUnit>& trained, std::vector<ParamUnit>& frozen) {
  std::vector<ParamGroup> changing, still;
  for (auto& group : groups) {
    const bool trains = selection.trains(group);
    (trains ? changing : still).push_back(std::move(group));
  }
  for (auto& group : adapters) changing.push_back(std::move(group));
  UnitPlace place;
  if (!changing.empty()) {
    place.trained = trained.size();
    trained.emplace_back(name, std::move(changing));
  }
  if (!still.empty()) {
    place.frozen = frozen.size();
    frozen.emplace_back(name + ".frozen", std::move(still));
  }
  return place;
}

// Finds tensors in the trained and the frozen unit of a UnitPlace.
class Refs {
 public:
  Refs(const DecoderLayout& layout, const UnitPlace& place)
      : trained_(place.trained ? &layout.units()[*place.trained] : nullptr),
        frozen_(place.frozen ? &layout.frozen_units()[*place.frozen] : nullptr) {}

  ParamRef operator()(const std::string& name, int64_t rows, int64_t columns) const {
    const ParamSlot* slot = trained_ ? trained_->find(name) : nullptr;
    const bool trained = slot != nullptr;
    if (!trained) slot = &frozen_->slot(name);
    return {.offset = slot->offset, .rows = rows, .columns = columns, .trained = trained};
  }

  AdapterRefs adapters(const std::vector<AdapterPlace>& places) const {
    AdapterRefs refs;
    int64_t ranks = 0;
    for (const auto& place : places) {
      refs.parts.push_back({.b = (*this)(adapter_b(place.module), place.outputs, place.rank),
                            .first = ranks,
                            .begin = place.begin,
                            .scale = place.scale,
                            .number = place.number});
      ranks += place.rank;
    }
    if (!places.empty()) {
      refs.a = (*this)(adapter_a(places.front().module), ranks, places.front().inputs);
    }
    return refs;
  }

  std::vector<ParamRef> held() const {
    std::vector<ParamRef> refs;
    if (!trained_) return refs;
    for (const auto& slot : trained_->slots()) {
      if (slot.held) refs.push_back({.offset = slot.offset, .rows = slot.numel(), .columns = 0});
    }
    return refs;
  }

 private:
  const ParamUnit* trained_;
  const ParamUnit* frozen_;
};

}  // namespace

DecoderLayout::DecoderLayout(const ModelConfig& config, const AdapterOptions& options)
    : tied_(config.tie_word_embeddings), adapters_(options) {
  const AdapterLayout adapters(config, options);
  Selection selection(options);
  const auto add = [&](const std::string& name, std::vector<ParamGroup> groups,
                       std::vector<ParamGroup> more) {
    places_.push_back(
        add_units(name, std::move(groups), std::move(more), selection, units_, frozen_));
  };
  ParamGroup embedding{
      {matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)}};
  embedding.slots.front().embedding = true;
  const ParamGroup final_norm{{vector("model.norm.weight", config.hidden_size)}};
  const std::vector<ParamGroup> head_adapters = adapters.tensors(AdapterGroup::kHead, 0);
  if (tied_)
    add("embedding_and_head", {embedding, final_norm}, head_adapters);
  else
    add("embedding", {embedding}, {});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<ParamGroup> tensors;
    for (size_t group = 0; group < kBlockAdapterGroups; ++group) {
      for (auto& each : adapters.tensors(static_cast<AdapterGroup>(group), layer)) {
        tensors.push_back(std::move(each));
      }
    }
    add("block." + std::to_string(layer), block_groups(config, layer), std::move(tensors));
  }
  if (!tied_) {
    const ParamGroup head{{matrix("lm_head.weight", config.vocab_size, config.hidden_size)}};
    add("head", {final_norm, head}, head_adapters);
  }
  selection.check();
}

const std::string& DecoderLayout::name(const UnitPlace& place) const {
  return place.trained ? units_[*place.trained].name() : frozen_[*place.frozen].name();
}

int64_t DecoderLayout::num_parameters() const { return elements_of(units_) + elements_of(frozen_); }

int64_t DecoderLayout::num_trained_parameters() const {
  int64_t sum = 0;
  for (const auto& unit : units_) {
    for (const auto& slot : unit.slots()) sum += slot.held ? 0 : slot.numel();
  }
  return sum;
}

BlockRefs block_refs(const ModelConfig& c, const DecoderLayout& layout, int64_t layer) {
  const std::string prefix = block_prefix(layer);
  const Refs ref(layout, layout.block(layer));
  const AdapterLayout places(c, layout.adapters());
  const char* after_attention = "post_attention_layernorm.weight";
  const std::string mlp_input =
      c.branch_norms ? "pre_feedforward_layernorm.weight" : after_attention;
  const auto adapters = [&](AdapterGroup group) {
    return ref.adapters(places.places(group, layer));
  };
  const MixtureNames mixture = mixture_names(c, prefix);
  const auto stack = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    return ref(name, c.mixture.experts * outputs, inputs);
  };
  const auto weight = [&](LinearGroup group) {
    if (c.is_mixture() && group == LinearGroup::kGateUp)
      return stack(mixture.gate_up, 2 * c.intermediate_size, c.hidden_size);
    if (c.is_mixture() && group == LinearGroup::kDown)
      return stack(mixture.down, c.hidden_size, c.intermediate_size);
    const std::vector<Linear> linears = linears_of(c, group);
    return ref(prefix + linears.front().name + ".weight", outputs_of(linears),
               linears.front().inputs);
  };
  const auto bias = [&](LinearGroup group) -> std::optional<ParamRef> {
    if (!has_bias(c, group)) return std::nullopt;
    const std::vector<Linear> linears = linears_of(c, group);
    return ref(prefix + linears.front().name + ".bias", outputs_of(linears), 0);
  };
  const auto optional = [&](bool present, const std::string& name, int64_t rows,
                            int64_t columns) -> std::optional<ParamRef> {
    if (!present) return std::nullopt;
    return ref(prefix + name, rows, columns);
  };
  BlockRefs refs{
      .qkv = weight(LinearGroup::kQkv),
      .output = weight(LinearGroup::kOutput),
      .gate_up = weight(LinearGroup::kGateUp),
      .down = weight(LinearGroup::kDown),
      .input_norm = ref(prefix + "input_layernorm.weight", c.hidden_size, 0),
      .post_norm = ref(prefix + mlp_input, c.hidden_size, 0),
      .router =
          c.is_mixture() ? std::optional(stack(mixture.router, 1, c.hidden_size)) : std::nullopt,
      .qkv_bias = bias(LinearGroup::kQkv),
      .output_bias = bias(LinearGroup::kOutput),
      .gate_up_bias = bias(LinearGroup::kGateUp),
      .down_bias = bias(LinearGroup::kDown),
      .qk_norm = optional(c.qk_norm, "self_attn.q_norm.weight", 2, c.head_dim),
      .attention_norm = optional(c.branch_norms, after_attention, c.hidden_size, 0),
      .mlp_norm = optional(c.branch_norms, "post_feedforward_layernorm.weight", c.hidden_size, 0),
      .window = c.windows[static_cast<size_t>(layer)],
      .qkv_adapters = adapters(AdapterGroup::kQkv),
      .output_adapters = adapters(AdapterGroup::kOutput),
      .gate_up_adapters = adapters(AdapterGroup::kGateUp),
      .down_adapters = adapters(AdapterGroup::kDown),
      .held = ref.held()};
  const auto trained = [](const std::optional<ParamRef>& each) { return each && each->trained; };
  refs.trains_attention = refs.qkv.trained || refs.output.trained || refs.input_norm.trained ||
                          trained(refs.qkv_bias) || trained(refs.output_bias) ||
                          trained(refs.qk_norm) || trained(refs.attention_norm) ||
                          !refs.qkv_adapters.empty() || !refs.output_adapters.empty();
  return refs;
}

HeadRefs head_refs(const ModelConfig& c, const DecoderLayout& layout) {
  const Refs embedding(layout, layout.embedding()), head(layout, layout.head());
  const char* head_name = layout.tied() ? "model.embed_tokens.weight" : "lm_head.weight";
  const AdapterLayout places(c, layout.adapters());
  return {.embedding = embedding("model.embed_tokens.weight", c.vocab_size, c.hidden_size),
          .head = head(head_name, c.vocab_size, c.hidden_size),
          .norm = head("model.norm.weight", c.hidden_size, 0),
          .adapters = head.adapters(places.places(AdapterGroup::kHead, 0))};
}

int64_t lowest_trained_layer(const ModelConfig& c, const DecoderLayout& layout) {
  if (head_refs(c, layout).embedding.trained) return -1;
  int64_t layer = 0;
  while (layer < c.num_layers && !layout.block(layer).trained) ++layer;
  return layer;
}

bool trains_linears(const ModelConfig& c, const DecoderLayout& layout) {
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const BlockRefs block = block_refs(c, layout, layer);
    if (block.qkv.trained || block.output.trained || block.gate_up.trained || block.down.trained)
      return true;
  }
  return false;
}

AdapterSizes adapter_sizes(const ModelConfig& c, const DecoderLayout& layout) {
  AdapterSizes sizes = AdapterLayout(c, layout.adapters()).sizes();
  sizes.first_layer = std::max<int64_t>(lowest_trained_layer(c, layout), 0);
  return sizes;
}

}  // namespace fastsft
