#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "ops/gemm/float_gemm.h"

namespace fastsft::cpu {

// Returns the scratch floats of one thread for products [m, k] x [k, n] of bfloat16 or float16
// operands with a result of dtype `out`, and for products that are smaller. Smaller ones may take a
// little more, because their blocks of rows are not rounded alike.
inline int64_t grouped_floats(int64_t m, int64_t k, int64_t n, c10::ScalarType out) {
  const int64_t floats = gemm_floats(m, k, n, out);
  return floats == 0 ? 0 : floats + m + k + n;
}

}  // namespace fastsft::cpu
