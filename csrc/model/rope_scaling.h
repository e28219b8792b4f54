#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/registry.h"

namespace fastsft {

class ConfigFields;

// The scaling of rotary angles, computed in float32 like transformers' modeling_rope_utils.
struct RotaryScaling {
  // Returns the scaled frequencies for theta^(2i / head_dim), both [head_dim / 2] float32.
  std::function<at::Tensor(const at::Tensor& powers)> frequencies;
  double attention_factor = 1.0;  // factor of cosine and sine
  // Beyond this many positions transformers uses frequencies that depend on the batch; 0: never.
  int64_t most_positions = 0;
};

// The inputs from which a kind of scaling is read.
struct RopeFields {
  const ConfigFields& settings;  // the object with the scaling's own settings
  const ConfigFields& config;    // the whole config.json
  double theta;
  int64_t head_dim;
};

// The kinds of scaling. A source file registers the function that reads the settings, by
// `rope_type`.
struct RopeTypeTag {
  static constexpr const char* kNoun = "rope type";
};
using RopeTypeRegistry = Registry<RopeTypeTag, std::function<RotaryScaling(const RopeFields&)>>;

struct RopeSettings {
  double theta = 10000.0;
  RotaryScaling scaling;  // its `frequencies` are never empty after parsing
};

// Reads a config.json's RoPE settings in both spellings: rope_theta and rope_scaling, or
// rope_parameters. Throws std::invalid_argument for an unknown scaling type.
RopeSettings parse_rope(const ConfigFields& fields, int64_t head_dim);

}  // namespace fastsft
