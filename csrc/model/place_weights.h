#pragma once

#include "model/layout.h"
#include "shard/strategy.h"

namespace fastsft {

// Both units of a place, as Strategy has each.
inline void prefetch(Strategy& strategy, const UnitPlace& place) {
  if (place.frozen) strategy.frozen().prefetch(*place.frozen);
  if (place.trained) strategy.prefetch(*place.trained);
}

inline PlaceWeights gather(Strategy& strategy, const UnitPlace& place) {
  PlaceWeights weights;
  if (place.frozen) weights.frozen = strategy.frozen().gather(*place.frozen);
  if (place.trained) weights.trained = strategy.gather(*place.trained);
  return weights;
}

inline void release(Strategy& strategy, const UnitPlace& place) {
  if (place.frozen) strategy.frozen().release(*place.frozen);
  if (place.trained) strategy.release(*place.trained);
}

// Null where nothing of the place is trained.
inline UnitGradient* whole_gradient(Strategy& strategy, const UnitPlace& place) {
  return place.trained ? &strategy.gradients().whole(*place.trained) : nullptr;
}

inline void reduce_gradient(Strategy& strategy, const UnitPlace& place) {
  if (place.trained) strategy.gradients().reduce(*place.trained);
}

}  // namespace fastsft
