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

// The trained and the frozen unit for the embedding, a block or the head, as indices into `units`
// and `frozen_units`. They are gathered together.
struct UnitPlace {
  std::optional<size_t> trained, frozen;
};

// The units of a decoder: the embedding, the blocks, and last the final norm with the head. With
// tied weights the first unit is [embedding, final norm], and there is no last unit. `units` has
// the trained parameters, in this order; without adapters these are all parameters. Fused matrices
// are trained together or not at all.
class DecoderLayout {
 public:
  // Throws std::invalid_argument for adapters and names that the model does not have.
  explicit DecoderLayout(const ModelConfig& config, const AdapterOptions& adapters = {});

  const std::vector<ParamUnit>& units() const { return units_; }
  const std::vector<ParamUnit>& frozen_units() const { return frozen_; }
  const UnitPlace& embedding() const { return places_.front(); }
  const UnitPlace& block(int64_t layer) const { return places_[static_cast<size_t>(layer) + 1]; }
  const UnitPlace& head() const { return tied_ ? places_.front() : places_.back(); }
  bool tied() const { return tied_; }
  // Returns how many units stay gathered from a micro-batch's first forward to its last backward.
  size_t resident_units() const { return tied_ && embedding().trained ? 1 : 0; }
  size_t resident_frozen_units() const { return tied_ && embedding().frozen ? 1 : 0; }
  // Returns a name for messages, such as "block.3".
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

// Gathered flat parameters for a UnitPlace. A tensor is undefined without a trained (or frozen)
// unit.
struct PlaceWeights {
  at::Tensor trained, frozen;
};

// A matrix or vector in a unit: a tensor, or a fused group that begins at `offset`.
struct ParamRef {
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector with `rows` elements
  bool trained = true;

  at::Tensor view(const at::Tensor& flat) const { return form(flat.narrow(0, offset, numel())); }
  at::Tensor view(const UnitGradient& gradient) const {
    return form(gradient.range(offset, numel()));
  }
  at::Tensor view(const PlaceWeights& weights) const {
    return view(trained ? weights.trained : weights.frozen);
  }
  // Return the gradient to write and the beta of the write (UnitGradient::begin_write). None and 0
  // if the parameter is frozen.
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

// The adapters of linears with the same input.
struct AdapterRefs {
  struct Part {
    ParamRef b;         // [outputs, rank]
    int64_t first = 0;  // position of its ranks among the group's ranks
    int64_t begin = 0;  // position of its columns in the group's output
    double scale = 1;
    uint32_t number = 0;  // as in AdapterPlace
  };
  ParamRef a;  // [ranks, inputs]
  std::vector<Part> parts;

  bool empty() const { return parts.empty(); }
};

// Dropout of adapter inputs (ops/dropout/dropout.h). `memory` has room for the widest input.
struct AdapterDropout {
  double probability = 0;      // 0: no dropout
  int64_t seed = 0;            // the step's seed
  at::Tensor token_keys = {};  // [tokens] int32
  at::Tensor memory = {};      // flat
};

class Fp8Weights;

// A decoder block's parameters, and its attention window in tokens (0: no window). in_fp8: its
// linear layers are computed in 8 bits (model/fp8_products.h). fp8_weights: these weights in 8 bits
// where they are kept; null: each product quantises its own.
struct BlockRefs {
  ParamRef qkv, output, gate_up, down, input_norm, post_norm;  // post_norm: the norm before the MLP
  // The router of a mixture [experts, hidden]; gate_up and down are then stacks of the experts'
  // matrices, by rows.
  std::optional<ParamRef> router;
  std::optional<ParamRef> qkv_bias, output_bias, gate_up_bias, down_bias;
  std::optional<ParamRef> qk_norm;                   // [2, head_dim]: query norm, key norm
  std::optional<ParamRef> attention_norm, mlp_norm;  // branch norms, before the residual sum
  int64_t window = 0;
  bool in_fp8 = false;
  Fp8Weights* fp8_weights = nullptr;
  AdapterRefs qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
  std::vector<ParamRef> held = {};  // constant tensors of trained groups
  bool trains_attention = true;     // a parameter before the post norm is trained
};
BlockRefs block_refs(const ModelConfig& config, const DecoderLayout& layout, int64_t layer);

struct HeadRefs {
  ParamRef embedding;         // in the embedding's unit
  ParamRef head;              // in the head's unit; the embedding if weights are tied
  ParamRef norm;              // in the head's unit
  AdapterRefs adapters = {};  // in the head's unit
};
HeadRefs head_refs(const ModelConfig& config, const DecoderLayout& layout);

// Returns the lowest layer with trained parameters; -1 means the embedding, num_layers the head.
int64_t lowest_trained_layer(const ModelConfig& config, const DecoderLayout& layout);
// Returns true if a block's linear layer is trained whole.
bool trains_linears(const ModelConfig& config, const DecoderLayout& layout);
AdapterSizes adapter_sizes(const ModelConfig& config, const DecoderLayout& layout);

}  // namespace fastsft
