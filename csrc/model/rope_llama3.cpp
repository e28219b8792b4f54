#include <algorithm>
#include <numbers>

#include "model/config_fields.h"
#include "model/rope_scaling.h"

namespace fastsft {
namespace {

// Waves longer than original / low are slowed down by `factor`, those shorter than original / high
// stay, and between them the two are mixed.
struct Llama3Scaling {
  float factor, low, high, original;

  float operator()(float frequency) const {
    const float wavelength = 1.0f / frequency * 2.0f * std::numbers::pi_v<float>;
    if (wavelength > original / low) return frequency / factor;
    if (wavelength < original / high) return frequency;
    const float smooth = (1.0f / wavelength * original - low) / (high - low);
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
  }
};

RotaryScaling llama3(const RopeFields& fields) {
  const ConfigFields& settings = fields.settings;
  const Llama3Scaling scaling{
      .factor = static_cast<float>(settings.positive_number("factor")),
      .low = static_cast<float>(settings.positive_number("low_freq_factor")),
      .high = static_cast<float>(settings.positive_number("high_freq_factor")),
      .original = static_cast<float>(settings.positive("original_max_position_embeddings"))};
  require(scaling.high > scaling.low, settings.where(), ": \"high_freq_factor\" is ", scaling.high,
          ", expected more than \"low_freq_factor\", which is ", scaling.low);
  return {.frequencies = [scaling](const at::Tensor& powers) {
    const at::Tensor frequencies = powers.reciprocal();
    float* first = frequencies.data_ptr<float>();
    std::transform(first, first + frequencies.numel(), first, scaling);
    return frequencies;
  }};
}

const bool kRopeLlama3Registered = RopeTypeRegistry::instance().add("llama3", llama3);

}  // namespace
}  // namespace fastsft
