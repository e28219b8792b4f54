#include "model/layer_windows.h"

namespace fastsft {
namespace {

// Qwen2Config's and Qwen3Config's defaults.
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultFirstLayer = 28;

int64_t window_of(const ConfigFields& fields) {
  if (!fields.boolean_or("use_sliding_window", false)) return 0;
  if (!fields.json().contains("sliding_window")) return kDefaultWindow;
  return fields.positive_or("sliding_window", 0);
}

// Not positive(): 0 makes every layer slide.
int64_t first_sliding_layer(const ConfigFields& fields) {
  const double first = fields.number_or("max_window_layers", kDefaultFirstLayer);
  require(first >= 0 && first < 1e9, fields.where(), ": \"max_window_layers\" is ", first,
          ", expected 0 or more, a number of layers");
  return static_cast<int64_t>(first);
}

bool slides(const Json& type, const ConfigFields& fields) {
  require(type == "sliding_attention" || type == "full_attention", fields.where(),
          ": \"layer_types\" holds ", type.dump(),
          ", expected \"full_attention\" or \"sliding_attention\"");
  return type == "sliding_attention";
}

}  // namespace

std::vector<int64_t> windows_of_types(const ConfigFields& fields, int64_t num_layers,
                                      int64_t window) {
  const Json& types = fields.json()["layer_types"];
  require(types.is_array() && types.size() == static_cast<size_t>(num_layers), fields.where(),
          ": \"layer_types\" is ", types.dump(), ", expected a list of ", num_layers, " texts");
  std::vector<int64_t> windows;
  for (const Json& type : types) {
    windows.push_back(slides(type, fields) ? window : 0);
    require(!slides(type, fields) || window > 0, fields.where(),
            ": \"layer_types\" has sliding_attention, but \"use_sliding_window\" is false or "
            "\"sliding_window\" null; set them, or make all layers full_attention");
  }
  return windows;
}

std::vector<int64_t> parse_layer_windows(const ConfigFields& fields, int64_t num_layers) {
  const int64_t window = window_of(fields), first = first_sliding_layer(fields);
  if (fields.has("layer_types")) return windows_of_types(fields, num_layers, window);
  std::vector<int64_t> windows(static_cast<size_t>(num_layers), 0);
  for (int64_t layer = first; layer < num_layers; ++layer) {
    windows[static_cast<size_t>(layer)] = window;
  }
  return windows;
}

}  // namespace fastsft
