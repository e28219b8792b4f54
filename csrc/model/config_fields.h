#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// What several families, but not all, have in their config.json.

// `window` where "layer_types" says sliding_attention, else 0.
std::vector<int64_t> windows_of_types(const ConfigFields& fields, int64_t num_layers,
                                      int64_t window);

// The windows of Qwen's layers: `sliding_window` where "layer_types" says sliding_attention, or,
// without that list, from layer `max_window_layers` on; and only with `use_sliding_window`.
std::vector<int64_t> parse_layer_windows(const ConfigFields& fields, int64_t num_layers);

// What Gemma 2 and Gemma 3 have in common. `json` is a config.json with the family's defaults
// filled in. Layers are local (a window of `sliding_window` tokens) by "layer_types", or, without
// that list, all but every `pattern`-th.
ModelConfig parse_gemma_fields(const Json& json, int64_t pattern);

// A bound of scores or logits; null or absent: 0, none.
double softcap_of(const ConfigFields& fields, const std::string& name);

// `json` with what Gemma2Config and Gemma3TextConfig give keys that are absent.
Json with_gemma_defaults(const Json& json);

}  // namespace fastsft
