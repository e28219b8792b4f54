#pragma once

#include <cstdint>

namespace fastsft::cuda {

// A quantised copy of a kernel's result: e4m3, with a scale for each row (ops/fp8/fp8.h).
struct Fp8Rows {
  uint8_t* values = nullptr;  // null: none
  float* scales = nullptr;
  bool power_of_2 = false;
};

}  // namespace fastsft::cuda
