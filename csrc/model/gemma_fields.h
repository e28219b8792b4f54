#pragma once

#include "model/config_fields.h"

namespace fastsft {

// What Gemma 2 and Gemma 3 have in common. `json` is a config.json with the family's defaults
// filled in. Layers are local (a window of `sliding_window` tokens) by "layer_types", or, without
// that list, all but every `pattern`-th.
ModelConfig parse_gemma_fields(const Json& json, int64_t pattern);

// A bound of scores or logits; null or absent: 0, none.
double softcap_of(const ConfigFields& fields, const std::string& name);

// `json` with what Gemma2Config and Gemma3TextConfig give keys that are absent.
Json with_gemma_defaults(const Json& json);

}  // namespace fastsft
