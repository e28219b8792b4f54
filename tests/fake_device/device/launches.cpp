// Kernel launches: nvcc's host stubs are found by their mangled names, their kernels by the
// demangled names that the emulation has added.
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "state.h"

namespace fake_device {
namespace {

struct Kernel {
  BindKernel bind;
  std::function<bool(int)> allow_dynamic_memory;
};
std::map<std::string, Kernel>& kernels() {
  static auto* const only = new std::map<std::string, Kernel>;
  return *only;
}

struct Stub {
  const char* mangled = nullptr;
  std::string name;  // set at the first use
  const Kernel* kernel = nullptr;
};
std::unordered_map<const void*, Stub>& stubs() {
  static auto* const only = new std::unordered_map<const void*, Stub>;
  return *only;
}

std::string demangled(const char* mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string result = text ? text : mangled;
  std::free(text);
  return result;
}

// "<file>|<kernel>": the file is in nvcc's name of the anonymous namespace,
// "_GLOBAL__N__<hash>_<n>_<file>_cu_<hash>"; templates carry a result type, which is removed.
std::string name_of_stub(const std::string& mangled) {
  std::string kernel = demangled(mangled.c_str());
  if (kernel.starts_with("void ")) kernel = kernel.substr(5);
  const size_t begin = mangled.find("_GLOBAL__N__"), end = mangled.find("_cu_", begin);
  if (begin == std::string::npos || end == std::string::npos) return kernel;
  const size_t hash = mangled.find('_', begin + std::strlen("_GLOBAL__N__"));
  const size_t number = mangled.find('_', hash + 1);
  return mangled.substr(number + 1, end - number - 1) + "|" + kernel;
}

const Stub* find_stub(const void* address) {
  const auto found = stubs().find(address);
  if (found == stubs().end()) return nullptr;
  Stub& stub = found->second;
  if (stub.name.empty()) stub.name = name_of_stub(stub.mangled);
  if (!stub.kernel) {
    auto kernel = kernels().find(stub.name);
    if (kernel == kernels().end() && !stub.name.ends_with(">")) {
      // The emulation knows a kernel that is no template without its parameters.
      kernel = kernels().find(stub.name.substr(0, stub.name.rfind('(')));
    }
    if (kernel != kernels().end()) stub.kernel = &kernel->second;
  }
  return &stub;
}

// "rms_norm_cuda|fastsft::cuda::(anonymous namespace)::forward<float>(...)" ->
// "rms_norm_cuda|forward<float>"
std::string short_name(const std::string& name) {
  const size_t bar = name.find('|'), space = name.find("(anonymous namespace)::");
  const size_t begin = space == std::string::npos ? bar + 1 : space + 23;
  return name.substr(0, bar + 1) + name.substr(begin, name.find('(', begin) - begin);
}

cudaError_t launch(const void* address, const Launch& how, void** args, cudaStream_t stream) {
  std::string name;
  Work work;
  {
    const std::unique_lock lock(state().mutex);
    const Stub* stub = find_stub(address);
    if (!stub || !stub->kernel) {
      report_wrong_call(stub ? "no emulation of the kernel " + stub->name
                             : "launch of a kernel that nobody registered");
      return cudaErrorInvalidDeviceFunction;
    }
    name = short_name(stub->name);
    work = stub->kernel->bind(how, args);
  }
  enqueue(stream, "kernel " + name, {}, std::move(work));
  return cudaSuccess;
}

struct Configuration {
  Launch launch;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

void add_kernel(const std::string& name, BindKernel bind,
                std::function<bool(int)> allow_dynamic_memory) {
  kernels()[name] = {std::move(bind), std::move(allow_dynamic_memory)};
}

}  // namespace fake_device

using namespace fake_device;

EXPORTED void** __cudaRegisterFatBinary(void*) { return new void*(nullptr); }
EXPORTED void __cudaRegisterFatBinaryEnd(void**) {}
EXPORTED void __cudaUnregisterFatBinary(void**) {}
EXPORTED char __cudaInitModule(void**) { return 1; }
EXPORTED void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORTED void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*,
                                     uint3*, dim3*, dim3*, int*) {
  stubs()[stub].mangled = name;
}
EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                              CUstream_st* stream) {
  configurations.push_back({{grid, block, shared}, stream});
  return 0;
}
EXPORTED cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                                void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.launch.grid;
  *block = last.launch.block;
  *shared = last.launch.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** args,
                                      size_t shared, cudaStream_t stream) {
  COUNT_CALL();
  return returned(launch(stub, {grid, block, shared}, args, stream));
}
EXPORTED cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3 grid, dim3 block,
                                                 void** args, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(stub, grid, block, args, shared, stream);
}
EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub,
                                         void** args) {
  return cudaLaunchKernel(stub, config->gridDim, config->blockDim, args, config->dynamicSmemBytes,
                          config->stream);
}
EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                                        size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, args, shared, stream);
}
EXPORTED cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  COUNT_CALL();
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaFuncSetAttribute(const void* address, cudaFuncAttribute attribute,
                                          int value) {
  COUNT_CALL();
  const std::unique_lock lock(state().mutex);
  const Stub* stub = find_stub(address);
  const bool memory = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
  const bool refused = memory && stub && stub->kernel && !stub->kernel->allow_dynamic_memory(value);
  return returned(refused ? cudaErrorInvalidValue : cudaSuccess);
}
