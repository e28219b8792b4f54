#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "model/config.h"

namespace fastsft {

// Typed access to config.json with errors that name the field.
class ConfigFields {
 public:
  explicit ConfigFields(const Json& json) : json_(json) {}

  bool has(const std::string& field) const {
    return json_.contains(field) && !json_[field].is_null();
  }
  int64_t positive(const std::string& field) const;
  int64_t positive_or(const std::string& field, int64_t fallback) const;
  double number_or(const std::string& field, double fallback) const;
  bool boolean_or(const std::string& field, bool fallback) const;
  std::string text_or(const std::string& field, const std::string& fallback) const;
  // The field must be absent, null or equal to `expected`.
  void expect(const std::string& field, const Json& expected) const;
  const Json& json() const { return json_; }

 private:
  const Json& json_;
};

// Sizes, heads, epsilon and tying: what every family of the kind has.
ModelConfig parse_decoder_fields(const ConfigFields& fields);
// rope_theta and linear scaling, in both spellings (rope_scaling and rope_parameters).
void parse_rope(const ConfigFields& fields, ModelConfig& config);

}  // namespace fastsft
