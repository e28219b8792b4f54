#include "model/config_fields.h"

namespace fastsft {
namespace {

constexpr double kMaxSize = 2147483647;  // the product of two sizes fits an int64

}  // namespace

void ConfigFields::refuse(const std::string& field, const char* expected) const {
  throw_invalid(where_, ": \"", field, "\" is ", json_[field].dump(), ", expected ", expected);
}

int64_t ConfigFields::positive(const std::string& field) const {
  require(has(field), where_, ": \"", field, "\" is missing");
  const Json& value = json_[field];
  const double number = value.is_number_integer() ? value.get<double>() : 0;
  if (!(number >= 1 && number <= kMaxSize)) refuse(field, "a positive integer below 2^31");
  return value.get<int64_t>();
}

int64_t ConfigFields::positive_or(const std::string& field, int64_t fallback) const {
  return has(field) ? positive(field) : fallback;
}

double ConfigFields::positive_number(const std::string& field) const {
  require(has(field), where_, ": \"", field, "\" is missing");
  const double value = number_or(field, 0);
  if (!(value > 0)) refuse(field, "a positive number");
  return value;
}

double ConfigFields::number_or(const std::string& field, double fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_number()) refuse(field, "a number");
  return json_[field].get<double>();
}

bool ConfigFields::boolean_or(const std::string& field, bool fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_boolean()) refuse(field, "true or false");
  return json_[field].get<bool>();
}

std::string ConfigFields::text_or(const std::string& field, const std::string& fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_string()) refuse(field, "a text");
  return json_[field].get<std::string>();
}

ConfigFields ConfigFields::object(const std::string& field) const {
  if (!json_[field].is_object()) refuse(field, "an object");
  return ConfigFields(json_[field], where_ + ": \"" + field + "\"");
}

void ConfigFields::expect(const std::string& field, const Json& expected) const {
  require(!has(field) || json_[field] == expected, where_, ": \"", field, "\" is ",
          json_.value(field, Json()).dump(), "; this model family is built for ", expected.dump());
}

}  // namespace fastsft
