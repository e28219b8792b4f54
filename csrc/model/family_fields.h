#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config_fields.h"

namespace fastsft {

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
