#pragma once

#include <cstdint>
#include <vector>

#include "model/config_fields.h"

namespace fastsft {

// The windows of Qwen's layers: `sliding_window` where "layer_types" says sliding_attention, or,
// without that list, from layer `max_window_layers` on; and only with `use_sliding_window`.
std::vector<int64_t> parse_layer_windows(const ConfigFields& fields, int64_t num_layers);

// `window` where "layer_types" says sliding_attention, else 0.
std::vector<int64_t> windows_of_types(const ConfigFields& fields, int64_t num_layers,
                                      int64_t window);

}  // namespace fastsft
