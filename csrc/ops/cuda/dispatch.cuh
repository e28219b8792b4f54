#pragma once

#include "ops/cuda/access.h"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

// Calls launch<T>() for the element type.
template <typename Launch>
void dispatch(Dtype dtype, const Launch& launch) {
  if (dtype == Dtype::kFloat)
    launch.template operator()<float>();
  else if (dtype == Dtype::kHalf)
    launch.template operator()<float16>();
  else
    launch.template operator()<bfloat16>();
}

// Calls launch<T, kWidth>() for the access width (16 bytes or one element).
template <typename T, typename Launch>
void dispatch_width(int width, const Launch& launch) {
  if (width == 1)
    launch.template operator()<T, 1>();
  else
    launch.template operator()<T, 16 / sizeof(T)>();
}

// Calls launch<T, kWidth>() for the element type and access width.
template <typename Launch>
void dispatch(Dtype dtype, int width, const Launch& launch) {
  dispatch(dtype, [&]<typename T>() { dispatch_width<T>(width, launch); });
}

}  // namespace fastsft::cuda
