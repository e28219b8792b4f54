// Stands in for CUDA's runtime headers: kernels are compiled by a C++ compiler, their threads are
// fibers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "fibers/kernel.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)  // translate.py turns the number into a check
#define __trap cuda_on_cpu::trap

using cuda_on_cpu::blockDim;
using cuda_on_cpu::blockIdx;
using cuda_on_cpu::dim3;
using cuda_on_cpu::gridDim;
using cuda_on_cpu::threadIdx;
using std::isfinite;
using std::max;
using std::min;

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor };

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// No fusing of products and sums in these builds.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }

inline void __syncthreads(cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  cuda_on_cpu::block_barrier(where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32,
                  cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  T result;
  cuda_on_cpu::shuffle(mask, &value, sizeof(T), cuda_on_cpu::lane() ^ lanes, &result, where);
  return result;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int = 32,
              cuda_on_cpu::Where where = cuda_on_cpu::Where::current()) {
  T result;
  cuda_on_cpu::shuffle(mask, &value, sizeof(T), lane, &result, where);
  return result;
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  const bool granted =
      cuda_on_cpu::allow_dynamic_memory(reinterpret_cast<const void*>(kernel), bytes);
  return granted ? cudaSuccess : cudaErrorInvalidValue;
}

// Events have the time of a clock that only products advance (glue/cublas_lt.cpp).
namespace cuda_on_cpu {
inline float clock_milliseconds = 0;
inline void advance_clock(float milliseconds) { clock_milliseconds += milliseconds; }
}  // namespace cuda_on_cpu
using cudaEvent_t = float*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new float(0);
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *event = cuda_on_cpu::clock_milliseconds;
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = *end - *begin;
  return cudaSuccess;
}

// No compute capability: attention takes our kernels for every head, never flash.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
