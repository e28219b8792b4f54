#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "model/config.h"

namespace fastsft {

// Typed access to a config.json object, with errors that name the field. A null counts as absent.
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
  // Throws unless the field is absent, null or equal to `expected`.
  void expect(const std::string& field, const Json& expected) const;
  // Throws when one of these fields is null, with which transformers fails.
  void refuse_null(std::initializer_list<const char*> fields) const;
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse(const std::string& field, const char* expected) const;

  const Json& json_;
  std::string where_;
};

// Reads the fields of every Llama-like decoder: sizes, heads, epsilon, tied weights and RoPE.
// Biases, qk_norm and windows are off; the activation must be silu.
ModelConfig parse_decoder_fields(const ConfigFields& fields);

// Fields that several families share.

// Returns each layer's window: `window` if "layer_types" says sliding_attention, otherwise 0.
std::vector<int64_t> windows_of_types(const ConfigFields& fields, int64_t num_layers,
                                      int64_t window);

// Returns the windows of Qwen layers: 0 unless `use_sliding_window` is true. A layer has the window
// `sliding_window` if "layer_types" says sliding_attention, or, without that list, from layer
// `max_window_layers` on.
std::vector<int64_t> parse_layer_windows(const ConfigFields& fields, int64_t num_layers);

// Reads the fields that Gemma 2 and Gemma 3 share. `json`: a config.json with the family's default
// values. Layers with a window of `sliding_window` tokens follow from "layer_types"; without that
// list, all layers except every `pattern`-th have the window.
ModelConfig parse_gemma_fields(const Json& json, int64_t pattern);

// Returns the soft limit of scores or logits; 0 (no limit) if it is null or absent.
double softcap_of(const ConfigFields& fields, const std::string& name);

// Returns `json` with the default values of Gemma2Config and Gemma3TextConfig for absent keys.
Json with_gemma_defaults(const Json& json);

}  // namespace fastsft
