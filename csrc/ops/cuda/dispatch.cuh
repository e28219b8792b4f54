#pragma once

#include "ops/cuda/dtype.h"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

// Calls launch<T, kWidth>() for the element type and access width (16 bytes or one element).
template <typename Launch>
void dispatch(Dtype dtype, int width, const Launch& launch) {
  if (dtype == Dtype::kFloat && width == 1)
    launch.template operator()<float, 1>();
  else if (dtype == Dtype::kFloat)
    launch.template operator()<float, 4>();
  else if (width == 1)
    launch.template operator()<bfloat16, 1>();
  else
    launch.template operator()<bfloat16, 8>();
}

}  // namespace fastsft::cuda
