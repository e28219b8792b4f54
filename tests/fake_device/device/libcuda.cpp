// Stands in for libcuda.so.1, which ATen's stub of NVRTC opens when torch initializes CUDA. Nothing
// is compiled or launched through it.
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(8), 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int* value, int, int) { return *value = 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) {
  return *context = reinterpret_cast<void*>(8), 0;
}
// In libfake_device.so, which is loaded before this library.
void fake_device_wrong_driver_call(const char* name);

#define NOT_IMPLEMENTED(name)                  \
  int name() {                                 \
    fake_device_wrong_driver_call(#name);      \
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */ \
  }
NOT_IMPLEMENTED(cuFuncGetAttribute)
NOT_IMPLEMENTED(cuFuncSetAttribute)
NOT_IMPLEMENTED(cuFuncSetCacheConfig)
NOT_IMPLEMENTED(cuGetErrorString)
NOT_IMPLEMENTED(cuLaunchCooperativeKernel)
NOT_IMPLEMENTED(cuLaunchKernel)
NOT_IMPLEMENTED(cuLinkAddData_v2)
NOT_IMPLEMENTED(cuLinkComplete)
NOT_IMPLEMENTED(cuLinkCreate_v2)
NOT_IMPLEMENTED(cuModuleGetFunction)
NOT_IMPLEMENTED(cuModuleLoad)
NOT_IMPLEMENTED(cuModuleLoadData)
NOT_IMPLEMENTED(cuModuleLoadDataEx)
NOT_IMPLEMENTED(cuModuleUnload)
NOT_IMPLEMENTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_IMPLEMENTED(cuPointerGetAttribute)
NOT_IMPLEMENTED(cuTensorMapEncodeTiled)
}
