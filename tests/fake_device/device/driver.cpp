// The driver's functions that c10 asks for by name.
#include <cuda.h>

#include "state.h"

using namespace fake_device;

namespace {

CUresult not_implemented() {
  report_wrong_call("a function of the driver that is not implemented");
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult current_context(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(8);
  return CUDA_SUCCESS;
}
CUresult device_of_ordinal(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult primary_context_state(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

void* function_named(const std::string& name) {
  if (name == "cuCtxGetCurrent") return reinterpret_cast<void*>(&current_context);
  if (name == "cuDeviceGet") return reinterpret_cast<void*>(&device_of_ordinal);
  if (name == "cuDeviceGetAttribute") return reinterpret_cast<void*>(&attribute);
  if (name == "cuDevicePrimaryCtxGetState") return reinterpret_cast<void*>(&primary_context_state);
  return reinterpret_cast<void*>(&not_implemented);
}

}  // namespace

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                      unsigned long long,
                                                      cudaDriverEntryPointQueryResult* result) {
  *function = function_named(name);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// libcuda.cpp's functions report through this one.
EXPORTED void fake_device_wrong_driver_call(const char* name) {
  report_wrong_call(std::string(name) + " is not implemented");
}
