#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/registry.h"

namespace fastsft {

class ConfigFields;

// What the rotary angles are made of: transformers' modeling_rope_utils in float32.
struct RotaryScaling {
  // Of theta^(2i / head_dim) [head_dim / 2] float32 the frequencies that are used, as many.
  std::function<at::Tensor(const at::Tensor& powers)> frequencies;
  double attention_factor = 1.0;  // of cosine and sine
  // Beyond it transformers takes other frequencies, which depend on the batch; 0: it never does.
  int64_t most_positions = 0;
};

// What a kind of scaling reads.
struct RopeFields {
  const ConfigFields& settings;  // its own
  const ConfigFields& config;    // all of config.json
  double theta;
  int64_t head_dim;
};

// A kind of scaling: its file registers how its settings are read, by `rope_type`.
struct RopeTypeTag {
  static constexpr const char* kNoun = "rope type";
};
using RopeTypeRegistry = Registry<RopeTypeTag, std::function<RotaryScaling(const RopeFields&)>>;

struct RopeSettings {
  double theta = 10000.0;
  RotaryScaling scaling;  // its function is never empty once parsed
};

// Of a config.json, in both spellings: rope_theta next to rope_scaling, or all in rope_parameters.
// Throws std::invalid_argument for a kind of scaling that is not registered.
RopeSettings parse_rope(const ConfigFields& fields, int64_t head_dim);

}  // namespace fastsft
