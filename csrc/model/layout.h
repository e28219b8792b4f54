#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/adapter_layout.h"
#include "model/adapters.h"
#include "model/config.h"
#include "shard/param_unit.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Parameters that are whole at the same time, as indices: one of `units`, one of `frozen_units`.
struct UnitPlace {
  std::optional<size_t> trained, frozen;
};

// Where the parameters of a decoder are. Its places are the embedding, the blocks, and at last head
// and final norm; tied, the first place is [embedding, final norm] and there is no last one. What
// is trained is in `units`, in the order of the places; without adapters that is everything. A
// tensor that is fused with others is trained with them or not at all, unless it does not decay.
class DecoderLayout {
 public:
  // std::invalid_argument for adapters and names that the model does not have.
  explicit DecoderLayout(const ModelConfig& config, const AdapterOptions& adapters = {});

  const std::vector<ParamUnit>& units() const { return units_; }
  const std::vector<ParamUnit>& frozen_units() const { return frozen_; }
  const UnitPlace& embedding() const { return places_.front(); }
  const UnitPlace& block(int64_t layer) const { return places_[static_cast<size_t>(layer) + 1]; }
  const UnitPlace& head() const { return tied_ ? places_.front() : places_.back(); }
  bool tied() const { return tied_; }
  // Units that stay whole from the first forward to the last backward of a micro-batch.
  size_t resident_units() const { return tied_ && embedding().trained ? 1 : 0; }
  size_t resident_frozen_units() const { return tied_ && embedding().frozen ? 1 : 0; }
  // "block.3": of a place, for messages.
  const std::string& name(const UnitPlace& place) const;
  int64_t num_parameters() const;
  int64_t num_trained_parameters() const;
  const AdapterOptions& adapters() const { return adapters_; }

 private:
  bool tied_;
  AdapterOptions adapters_;
  std::vector<ParamUnit> units_, frozen_;
  std::vector<UnitPlace> places_;
};

// Gathered flat parameters of one layer; an undefined tensor if the layer has no trained (or
// frozen) unit.
struct PlaceWeights {
  at::Tensor trained, frozen;
};

// A matrix or vector inside a unit: one tensor, or a fused group beginning at `offset`.
struct ParamRef {
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector of `rows`
  bool trained = true;

  at::Tensor view(const at::Tensor& flat) const { return form(flat.narrow(0, offset, numel())); }
  at::Tensor view(const UnitGradient& gradient) const {
    return form(gradient.range(offset, numel()));
  }
  at::Tensor view(const PlaceWeights& weights) const {
    return view(trained ? weights.trained : weights.frozen);
  }
  // The gradient to write into, and how: UnitGradient::begin_write. None and 0 if it is frozen.
  std::optional<at::Tensor> gradient(UnitGradient* unit) const {
    return trained ? std::optional(view(*unit)) : std::nullopt;
  }
  double begin_write(UnitGradient* unit) const { return trained ? unit->begin_write(offset) : 0.0; }

 private:
  int64_t numel() const { return columns == 0 ? rows : rows * columns; }
  at::Tensor form(const at::Tensor& range) const {
    return columns == 0 ? range : range.view({rows, columns});
  }
};

// The adapters of linears that read the same input.
struct AdapterRefs {
  struct Part {
    ParamRef b;         // [outputs, rank]
    int64_t first = 0;  // of its ranks among those of the group
    int64_t begin = 0;  // of its columns in the group's result
    double scale = 1;
    uint32_t number = 0;  // AdapterPlace
  };
  ParamRef a;  // [ranks, inputs]
  std::vector<Part> parts;

  bool empty() const { return parts.empty(); }
};

// The dropout of what adapters read (ops/dropout/dropout.h). `memory` holds the widest input.
struct AdapterDropout {
  double probability = 0;      // 0: none
  int64_t seed = 0;            // of the step
  at::Tensor token_keys = {};  // [tokens] int32
  at::Tensor memory = {};      // flat
};

// What a decoder block reads and writes, and how many tokens its attention sees (0: all).
struct BlockRefs {
  ParamRef qkv, output, gate_up, down, input_norm, post_norm;  // post_norm: before the MLP
  std::optional<ParamRef> qkv_bias, output_bias, gate_up_bias, down_bias;
  std::optional<ParamRef> qk_norm;  // [2, head_dim]: of the query heads, of the key heads
  std::optional<ParamRef> attention_norm, mlp_norm;  // of what each adds to the stream
  int64_t window = 0;
  AdapterRefs qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
  std::vector<ParamRef> held = {};  // parts of trained groups that never change
  bool trains_attention = true;     // something before the post norm is trained
};
BlockRefs block_refs(const ModelConfig& config, const DecoderLayout& layout, int64_t layer);

struct HeadRefs {
  ParamRef embedding;         // in the embedding's place
  ParamRef head;              // in the head's place; the embedding when tied
  ParamRef norm;              // in the head's place
  AdapterRefs adapters = {};  // likewise
};
HeadRefs head_refs(const ModelConfig& config, const DecoderLayout& layout);

// The lowest layer that has something to train: -1 is the embedding, num_layers the head.
int64_t lowest_trained_layer(const ModelConfig& config, const DecoderLayout& layout);
AdapterSizes adapter_sizes(const ModelConfig& config, const DecoderLayout& layout);

}  // namespace fastsft
