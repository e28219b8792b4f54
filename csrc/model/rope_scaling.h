#pragma once

#include <functional>

#include "core/registry.h"

namespace fastsft {

class ConfigFields;

// A rotary frequency as trained to the one that is used: transformers' modeling_rope_utils in
// float32.
using FrequencyScaling = std::function<float(float)>;

// A kind of scaling: its file registers how its settings are read, by `rope_type`.
struct RopeTypeTag {
  static constexpr const char* kNoun = "rope type";
};
using RopeTypeRegistry =
    Registry<RopeTypeTag, std::function<FrequencyScaling(const ConfigFields&)>>;

// What the rotary angles are made from.
struct RopeSettings {
  double theta;
  FrequencyScaling scale_frequency;
};

// Of a config.json, in both spellings: rope_theta next to rope_scaling, or all in rope_parameters.
// Throws std::invalid_argument for a kind of scaling that is not registered.
RopeSettings parse_rope(const ConfigFields& fields);

}  // namespace fastsft
