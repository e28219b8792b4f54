#pragma once

#include <cstdint>
#include <cstring>

// Kernels are plain loops that are compiled once per instruction set; the loader selects one
// version. A cloned function must not be a template, and must call only always-inline functions.
#if defined(__x86_64__)
#define FASTSFT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FASTSFT_CLONES
#endif
#define FASTSFT_INLINE inline __attribute__((always_inline))

namespace fastsft::cpu {

// Computes e^x to 2 ulp for x in [-87.3, 88.3]; x is clamped to this range. Loops over it
// vectorise. Uses Cody-Waite reduction by ln 2 in two parts, then the polynomial of Cephes expf.
FASTSFT_INLINE float exp_approx(float x) {
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float shifted = x * 1.44269504f + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127u) << 23;  // the low bits of `shifted` hold n; the shift drops all others
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

FASTSFT_INLINE float sigmoid_approx(float x) { return 1.0f / (1.0f + exp_approx(-x)); }

// Computes tanh to 3 ulp; NaN gives NaN. Loops over it vectorise. Uses the polynomial of Cephes
// tanhf near zero, and 1 - 2 / (e^2|x| + 1) elsewhere.
FASTSFT_INLINE float tanh_approx(float x) {
  const float size = x < 0 ? -x : x, square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float near = p * square * x + x;
  const float far = 1.0f - 2.0f / (exp_approx(2.0f * size) + 1.0f);
  const float signed_far = x < 0 ? -far : far;
  return size >= 0.625f ? signed_far : near;
}

}  // namespace fastsft::cpu
