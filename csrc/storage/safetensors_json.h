#pragma once

#include <string>
#include <string_view>

#include "storage/safetensors_header.h"

namespace fastsft {

// The JSON of a safetensors header as it is: types and names are checked, ranges are not.
// Event by event, so that a hostile header costs no more than its own size.
SafetensorsHeader parse_safetensors_json(std::string_view text, const std::string& where);

}  // namespace fastsft
