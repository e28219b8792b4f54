#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "model/config.h"

namespace fastsft {

// Typed access to an object of config.json with errors that name the field. A null counts as
// absent.
class ConfigFields {
 public:
  explicit ConfigFields(const Json& json, std::string where = "config.json")
      : json_(json), where_(std::move(where)) {}

  bool has(const std::string& field) const {
    return json_.contains(field) && !json_[field].is_null();
  }
  int64_t positive(const std::string& field) const;
  int64_t positive_or(const std::string& field, int64_t fallback) const;
  double positive_number(const std::string& field) const;
  double number_or(const std::string& field, double fallback) const;
  bool boolean_or(const std::string& field, bool fallback) const;
  std::string text_or(const std::string& field, const std::string& fallback) const;
  ConfigFields object(const std::string& field) const;
  // The field must be absent, null or equal to `expected`.
  void expect(const std::string& field, const Json& expected) const;
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse(const std::string& field, const char* expected) const;

  const Json& json_;
  std::string where_;
};

// Sizes, heads, epsilon, tying and rotation: what every family of the kind has. Biases, qk_norm and
// windows are off; the activation must be silu.
ModelConfig parse_decoder_fields(const ConfigFields& fields);

}  // namespace fastsft
