#include "model/rope_scaling.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "model/config_fields.h"

namespace fastsft {
namespace {

at::Tensor as_trained(const at::Tensor& powers) { return powers.reciprocal(); }

RotaryScaling linear(const RopeFields& fields) {
  const double factor = fields.settings.positive_number("factor");
  return {.frequencies = [factor](const at::Tensor& powers) {
    return as_trained(powers).div_(factor);
  }};
}

// Keeps the original frequencies, which transformers uses up to the model's
// max_position_embeddings.
RotaryScaling dynamic(const RopeFields& fields) {
  fields.settings.positive_number("factor");
  return {.frequencies = as_trained,
          .most_positions = fields.config.positive("max_position_embeddings")};
}

const bool kRopeScalingRegistered =
    RopeTypeRegistry::instance().add(
        "default", [](const RopeFields&) { return RotaryScaling{.frequencies = as_trained}; }) &&
    RopeTypeRegistry::instance().add("linear", linear) &&
    RopeTypeRegistry::instance().add("dynamic", dynamic);

std::string known_types() {
  std::string text;
  for (const auto& name : RopeTypeRegistry::instance().names()) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// Returns the scaling type; "type" is the old name for "rope_type".
std::string type_of(const ConfigFields& settings, const std::string& field) {
  const std::string fallback = settings.has("factor") ? "" : "default";
  const std::string type = settings.text_or("rope_type", settings.text_or("type", fallback));
  require(RopeTypeRegistry::instance().contains(type), "config.json: \"", field, "\" has type \"",
          type, "\"; supported: ", known_types(), ". Without \"", field,
          "\" the model trains with its original positions");
  return type;
}

// Rejects settings per layer kind or for a part of the head, which would be ignored.
void check_plain(const ConfigFields& settings, const std::string& field) {
  settings.expect("partial_rotary_factor", 1.0);
  for (const auto& [name, value] : settings.json().items()) {
    require(
        !value.is_object(), settings.where(), ": \"", name, "\" is ", value.dump(),
        ", expected one setting for all layers; fastsft computes no rotation per kind of layer (",
        field, ")");
  }
}

}  // namespace

RopeSettings parse_rope(const ConfigFields& fields, int64_t head_dim) {
  fields.expect("partial_rotary_factor", 1.0);
  if (!fields.has("rope_parameters")) fields.refuse_null({"rope_theta"});
  RopeSettings rope{fields.number_or("rope_theta", 10000.0), {.frequencies = as_trained}};
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(field)) continue;
    const ConfigFields settings = fields.object(field);
    check_plain(settings, field);
    rope.theta = settings.number_or("rope_theta", rope.theta);
    const auto& read = RopeTypeRegistry::instance().get(type_of(settings, field));
    rope.scaling = read({settings, fields, rope.theta, head_dim});
  }
  require(rope.theta > 0, fields.where(), ": \"rope_theta\" is ", rope.theta,
          ", expected a positive number");
  return rope;
}

namespace {

// Llama 3's scaling. It divides frequencies by `factor` if their wavelength exceeds original / low,
// keeps them if it is below original / high, and interpolates in between.
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

// YaRN (arXiv 2309.00071). Pairs that turn often within the trained positions keep their
// frequencies, pairs that turn rarely have them divided by `factor`, and pairs in between are
// interpolated.
struct Yarn {
  double factor, low, high;  // low, high: indices of pairs

  at::Tensor operator()(const at::Tensor& powers) const {
    const double span = high == low ? 0.001 : high - low;
    const at::Tensor interpolated =
        at::arange(powers.numel(), powers.options()).sub_(low).div_(span).clamp_(0, 1);
    const at::Tensor kept = interpolated.neg().add_(1);
    const at::Tensor slow = powers.mul(factor).reciprocal_();
    return slow.mul_(kept.neg().add_(1)).add_(powers.reciprocal().mul_(kept));
  }
};

// Returns the field's value, or `fallback` if it is 0, null or absent, as Python's `or` does.
double number_unless_zero(const ConfigFields& settings, const char* field, double fallback) {
  const double value = settings.number_or(field, 0);
  return value == 0 ? fallback : value;
}

double growth(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

double attention_factor(const ConfigFields& settings, double factor) {
  if (settings.has("attention_factor")) return settings.number_or("attention_factor", 1.0);
  const double scale = settings.number_or("mscale", 0);
  const double all_dims = settings.number_or("mscale_all_dim", 0);
  if (scale == 0 || all_dims == 0) return growth(factor, 1.0);
  return growth(factor, scale) / growth(factor, all_dims);
}

// Returns the index (a fraction) of the pair that turns `rotations` times within `positions`.
double pair_of(double rotations, double positions, const RopeFields& fields) {
  const auto head_dim = static_cast<double>(fields.head_dim);
  return head_dim * std::log(positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(fields.theta));
}

RotaryScaling yarn(const RopeFields& fields) {
  const ConfigFields& settings = fields.settings;
  const double factor = settings.positive_number("factor");
  const char* const original = "original_max_position_embeddings";
  const auto positions = static_cast<double>(
      settings.has(original) ? settings.positive(original)
                             : fields.config.positive("max_position_embeddings"));
  double low = pair_of(number_unless_zero(settings, "beta_fast", 32), positions, fields);
  double high = pair_of(number_unless_zero(settings, "beta_slow", 1), positions, fields);
  require(std::isfinite(low) && std::isfinite(high), settings.where(),
          ": \"beta_fast\" and \"beta_slow\" give no range of frequencies; expected positive "
          "numbers, and a \"rope_theta\" other than 1");
  if (settings.boolean_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  const Yarn frequencies{.factor = factor,
                         .low = std::max(low, 0.0),
                         .high = std::min(high, static_cast<double>(fields.head_dim - 1))};
  return {.frequencies = frequencies, .attention_factor = attention_factor(settings, factor)};
}

const bool kRopeYarnRegistered = RopeTypeRegistry::instance().add("yarn", yarn);

constexpr const char* kOriginal = "original_max_position_embeddings";

// Reads LongRoPE's factors (arXiv 2402.13753), a factor per pair. transformers uses "short_factor"
// up to the original positions, and "long_factor" for batches with a longer row.
at::Tensor factors_of(const RopeFields& fields, const char* name) {
  const Json& given = fields.settings.json().value(name, Json());
  const auto pairs = static_cast<size_t>(fields.head_dim / 2);
  std::vector<double> factors;
  for (const Json& each : given) {
    if (each.is_number() && each.get<double>() > 0) factors.push_back(each.get<double>());
  }
  require(given.is_array() && given.size() == pairs && factors.size() == pairs,
          fields.settings.where(), ": \"", name, "\" is ", given.dump(), ", expected a list of ",
          pairs, " positive numbers, one for each pair of head_dim ", fields.head_dim);
  return at::tensor(factors, at::TensorOptions().dtype(at::kFloat));
}

// Throws if only the RoPE settings have the original positions: releases of transformers treat that
// differently.
void check_original(const RopeFields& fields) {
  if (!fields.settings.has(kOriginal)) return;
  const int64_t own = fields.settings.positive(kOriginal);
  require(fields.config.has(kOriginal) && fields.config.positive(kOriginal) == own,
          fields.settings.where(), ": \"", kOriginal, "\" is ", own,
          ", expected the same value at the top of config.json, where it has ",
          fields.config.json().value(kOriginal, Json()).dump());
}

double attention_factor(const RopeFields& fields, int64_t original) {
  if (fields.settings.has("attention_factor")) {
    return fields.settings.number_or("attention_factor", 1.0);
  }
  const auto positions = static_cast<double>(fields.config.positive("max_position_embeddings"));
  const double factor = fields.config.has(kOriginal) ? positions / static_cast<double>(original)
                                                     : fields.settings.positive_number("factor");
  if (factor <= 1) return 1.0;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

RotaryScaling longrope(const RopeFields& fields) {
  check_original(fields);
  factors_of(fields, "long_factor");
  const int64_t original = fields.config.has(kOriginal)
                               ? fields.config.positive(kOriginal)
                               : fields.config.positive("max_position_embeddings");
  const at::Tensor factors = factors_of(fields, "short_factor");
  return {.frequencies =
              [factors](const at::Tensor& powers) { return factors.mul(powers).reciprocal_(); },
          .attention_factor = attention_factor(fields, original),
          .most_positions = original};
}

const bool kRopeLongropeRegistered = RopeTypeRegistry::instance().add("longrope", longrope);

}  // namespace

}  // namespace fastsft
