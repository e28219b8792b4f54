#pragma once

#include <c10/core/ScalarType.h>

#include "model/config.h"

namespace fastsft {

// The config's embedding_scale as `dtype` holds it: transformers multiplies by a tensor of the
// embedding's dtype.
inline double embedding_scale(const ModelConfig& config, c10::ScalarType dtype) {
  const auto scale = static_cast<float>(config.embedding_scale);
  if (dtype == c10::ScalarType::BFloat16) return static_cast<float>(c10::BFloat16(scale));
  if (dtype == c10::ScalarType::Half) return static_cast<float>(c10::Half(scale));
  return scale;
}

}  // namespace fastsft
