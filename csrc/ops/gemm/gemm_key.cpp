#include "ops/gemm/gemm_key.h"

namespace fastsft::cuda {

size_t GemmKeyHash::operator()(const GemmKey& key) const {
  uint64_t hash = 0;
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  for (const int64_t size : {key.m, key.n, key.k, key.lda, key.ldb, key.ldout}) {
    mix(static_cast<uint64_t>(size));
  }
  for (const uint64_t value : {key.alignment_a, key.alignment_b, key.alignment_out}) mix(value);
  mix(static_cast<uint64_t>(key.transpose_a) | static_cast<uint64_t>(key.transpose_b) << 1 |
      static_cast<uint64_t>(key.dtype) << 2 | static_cast<uint64_t>(key.out_dtype) << 3 |
      static_cast<uint64_t>(key.accumulates) << 4 | static_cast<uint64_t>(key.tf32) << 5 |
      static_cast<uint64_t>(key.device) << 6);
  return static_cast<size_t>(hash);
}

}  // namespace fastsft::cuda
