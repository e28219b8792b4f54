#include "model/rope_scaling.h"

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

// Up to the model's positions the frequencies are the original ones.
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

// "type" is the old spelling of "rope_type".
std::string type_of(const ConfigFields& settings, const std::string& field) {
  const std::string fallback = settings.has("factor") ? "" : "default";
  const std::string type = settings.text_or("rope_type", settings.text_or("type", fallback));
  require(RopeTypeRegistry::instance().contains(type), "config.json: \"", field, "\" has type \"",
          type, "\"; supported: ", known_types(), ". Without \"", field,
          "\" the model trains with its original positions");
  return type;
}

// Settings per kind of layer, or of a part of the head, would be ignored.
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

}  // namespace fastsft
