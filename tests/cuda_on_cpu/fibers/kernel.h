#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

// What a kernel and its launch see of the emulation.
namespace cuda_on_cpu {

using Where = std::source_location;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline Index threadIdx, blockIdx;  // of the fiber that runs
inline dim3 blockDim, gridDim;

struct Config {
  dim3 grid, block;
  size_t shared = 0;
};
inline Config config(dim3 grid, dim3 block, size_t shared = 0, void* = nullptr) {
  return {grid, block, shared};
}

struct Instance;
// Copies a launch's arguments, and returns a function that runs the kernel with them.
using Bind = std::function<void(Instance&, const Config&)> (*)(void** args);

// One instance of a kernel: enrolled when the library is loaded, launched or not. `type`: the name
// of its Launch, which holds the kernel's own.
struct Instance {
  const void* address;
  std::string file, name;
  const char* type;
  Bind bind;
  uint64_t launches = 0;
};
Instance& enroll(const void* address, const char* file, const char* pretty_function,
                 const char* type, Bind bind);
void for_each_instance(const std::function<void(Instance&)>& visit);

// Runs all blocks; returns when they are done. `call` runs the kernel once with `arguments`.
void run(Instance& instance, const Config& config, void (*call)(void*), void* arguments);

int lane();
void block_barrier(const Where& where);
void shuffle(unsigned mask, const void* mine, size_t bytes, int source, void* theirs,
             const Where& where);
[[noreturn]] void trap(const Where& where = Where::current());
void launch_bounds(unsigned threads);
bool allow_dynamic_memory(const void* kernel, int bytes);
void* static_memory(const void* tag, size_t bytes);
void* dynamic_memory();
// Everything that was wrong since the last call, a line each; empty when nothing was.
std::string take_reports();

// A __shared__ variable; `Tag` is a type of the declaration's own.
template <typename T, typename Tag>
T& shared() {
  static const char tag = 0;
  return *static_cast<T*>(static_memory(&tag, sizeof(T)));
}

// A kernel of one translation unit, which `File` names. Each thread gets its own copy of the
// arguments.
template <typename File, auto kKernel>
struct Launch;

template <typename File, typename... Args, void (*kKernel)(Args...)>
struct Launch<File, kKernel> {
  Config config;

  static const char* pretty() { return __PRETTY_FUNCTION__; }
  static std::function<void(Instance&, const Config&)> bind(void** args) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return [values = std::tuple<Args...>(*static_cast<Args*>(args[I])...)](
                 Instance& made, const Config& how) { run_with(made, how, values); };
    }(std::index_sequence_for<Args...>());
  }
  static inline Instance& instance = enroll(reinterpret_cast<const void*>(kKernel), File::name,
                                            pretty(), typeid(Launch).name(), &bind);

  static void run_with(Instance& made, const Config& how, const std::tuple<Args...>& values) {
    auto body = [&] { std::apply(kKernel, values); };
    run(made, how, [](void* data) { (*static_cast<decltype(body)*>(data))(); }, &body);
  }
  void operator()(std::type_identity_t<Args>... args) const {
    run_with(instance, config, std::tuple<Args...>(args...));
  }
};

template <typename File, auto kKernel>
Launch<File, kKernel> launch(const Config& config) {
  return {config};
}

}  // namespace cuda_on_cpu
