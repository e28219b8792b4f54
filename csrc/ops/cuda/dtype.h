#pragma once

namespace fastsft::cuda {

// What kernels compute from; arithmetic is float32.
enum class Dtype { kFloat, kBFloat16, kHalf };

inline int size_of(Dtype dtype) { return dtype == Dtype::kFloat ? 4 : 2; }

}  // namespace fastsft::cuda
