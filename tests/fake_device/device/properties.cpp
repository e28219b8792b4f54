// What programs ask about the device, and errors.
#include <cstdio>
#include <cstring>

#include "state.h"

namespace fake_device {
namespace {

// An H100's limits, so that the product chooses as it does there. The name says what it is.
constexpr char kName[] = "Fake CUDA device in host memory (limits of an H100)";
constexpr int kMajor = 9, kMinor = 0, kProcessors = 132;
constexpr int kSharedBytes = 49152, kSharedBytesOptIn = 232448;
constexpr int kVersion = 13000;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t returned(cudaError_t error) {
  if (error == cudaSuccess) error = state().sticky;
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace fake_device

using namespace fake_device;

EXPORTED cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().devices;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().devices) return returned(cudaErrorInvalidDevice);
  current_device = device;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedBytesOptIn;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedBytes;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", kName);
  properties->totalGlobalMem = state().memory_bytes;
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->multiProcessorCount = kProcessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = kSharedBytes;
  properties->sharedMemPerBlockOptin = kSharedBytesOptIn;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->l2CacheSize = 50 << 20;
  properties->pciBusID = 1 + device;
  properties->unifiedAddressing = 1;
  properties->concurrentKernels = 1;
  properties->uuid.bytes[0] = static_cast<char>(1 + device);
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORTED cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", 1 + device);
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                   size_t) {
  *blocks = 1;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                            const void*, int,
                                                                            size_t, unsigned) {
  *blocks = 1;
  return returned(cudaSuccess);
}

EXPORTED cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error != cudaSuccess ? last_error : state().sticky;
  last_error = cudaSuccess;
  return error;
}
EXPORTED cudaError_t cudaPeekAtLastError() {
  return last_error != cudaSuccess ? last_error : state().sticky;
}
EXPORTED const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
EXPORTED const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an error of the fake device";
  }
}
EXPORTED cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORTED cudaError_t cudaProfilerStop() { return cudaSuccess; }
