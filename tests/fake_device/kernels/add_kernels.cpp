// Gives the fake device the kernels that the emulation of tests/cuda_on_cpu has enrolled.
#include <cxxabi.h>

#include <cstdlib>
#include <stdexcept>

#include "device/device.h"
#include "fibers/kernel.h"

namespace cuda_on_cpu {
namespace {

// The product's kernels are in `fastsft`, the emulated ones in `fastsft_on_cpu`.
std::string with_product_namespace(std::string name) {
  const std::string emulated = "fastsft_on_cpu";
  for (size_t at = 0; (at = name.find(emulated, at)) != std::string::npos; ++at) {
    name.replace(at, emulated.size(), "fastsft");
  }
  return name;
}

// "cuda_on_cpu::Launch<(...)::SourceFile, &a::(anonymous namespace)::kernel<float>(args)>" ->
// "a::(anonymous namespace)::kernel<float>(args)"
std::string kernel_name(const char* type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type, nullptr, nullptr, &status);
  std::string name = text ? text : type;
  std::free(text);
  const std::string before = "SourceFile, ";
  const size_t begin = name.find(before) + before.size();
  name = name.substr(begin, name.rfind('>') - begin);
  if (name.starts_with("&")) name = name.substr(1);
  if (name.starts_with("(") && name.ends_with(")") && !name.starts_with("(anonymous"))
    name = name.substr(1, name.size() - 2);
  if (name.starts_with("void ")) name = name.substr(5);
  return with_product_namespace(name);
}

// Kernels of two files may have the same name: "rms_norm_cuda|<kernel>".
std::string unique_name(const Instance& instance) {
  const std::string file = instance.file.substr(instance.file.rfind('/') + 1);
  return file.substr(0, file.rfind('.')) + "|" + kernel_name(instance.type);
}

void add_kernel(Instance& instance) {
  const auto bind = [&instance](const fake_device::Launch& how, void** args) -> fake_device::Work {
    const Config config{
        {how.grid.x, how.grid.y, how.grid.z}, {how.block.x, how.block.y, how.block.z}, how.shared};
    return [&instance, config, run = instance.bind(args)] {
      run(instance, config);
      const std::string reports = take_reports();
      if (!reports.empty()) throw std::runtime_error(reports);
      return true;
    };
  };
  const auto allow = [address = instance.address](int bytes) {
    return allow_dynamic_memory(address, bytes);
  };
  fake_device::add_kernel(unique_name(instance), bind, allow);
}

}  // namespace
}  // namespace cuda_on_cpu

extern "C" __attribute__((visibility("default"))) void fake_device_add_kernels() {
  cuda_on_cpu::for_each_instance(&cuda_on_cpu::add_kernel);
}
