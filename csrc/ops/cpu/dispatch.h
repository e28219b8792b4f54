#pragma once

#include <c10/core/ScalarType.h>

#include "ops/cpu/convert.h"

namespace fastsft::cpu {

// Calls run<T>() for a dtype that `check_compute_dtype` lets through.
template <typename Run>
void dispatch(c10::ScalarType dtype, const Run& run) {
  if (dtype == c10::ScalarType::Float)
    run.template operator()<float>();
  else if (dtype == c10::ScalarType::Half)
    run.template operator()<float16>();
  else
    run.template operator()<bfloat16>();
}

}  // namespace fastsft::cpu
