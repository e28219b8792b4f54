// The fake device, as its other libraries see it: streams are queues of closures over host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#define FAKE_DEVICE_API __attribute__((visibility("default")))

namespace fake_device {

// Bytes that an operation reads or writes. `counted`: how many of them, if there are gaps.
struct Range {
  uintptr_t begin, end;
  bool write;
  uint64_t counted = end - begin;
};
using Ranges = std::vector<Range>;
inline Range reads(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes, false};
}
inline Range writes(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes, true};
}

// Returns true when the operation is done, false if it must be called again: a collective whose
// peers have not arrived.
using Work = std::function<bool()>;

// Appends an operation to `stream`. `flops`: floating-point operations of a product, for the
// counts.
FAKE_DEVICE_API void enqueue(cudaStream_t stream, std::string name, Ranges ranges, Work work,
                             double flops = 0);
FAKE_DEVICE_API void wait_stream(cudaStream_t stream);
FAKE_DEVICE_API void wait_device();

// Puts the device into the state after a failed launch: every later call returns the error.
FAKE_DEVICE_API void fail(const std::string& message);
// Reports a call that no real library would accept, or that the fake does not implement.
FAKE_DEVICE_API void report_wrong_call(const std::string& message);
// Counts a call of a CUDA library by name.
FAKE_DEVICE_API void count_call(const std::string& name);

FAKE_DEVICE_API bool is_device_memory(const void* pointer);
FAKE_DEVICE_API bool is_pinned_memory(const void* pointer);

// Starts a thread that runs queued operations while no host thread waits: other ranks wait for
// them.
FAKE_DEVICE_API void run_in_background();

struct Launch {
  dim3 grid, block;
  size_t shared;
};
// Copies a kernel's arguments and returns the launch as an operation.
using BindKernel = std::function<Work(const Launch&, void** args)>;
// `name`: "<source file>|<demangled kernel>", without the result type.
FAKE_DEVICE_API void add_kernel(const std::string& name, BindKernel bind,
                                std::function<bool(int)> allow_dynamic_memory);

// Reports the bytes that the running kernel has touched.
FAKE_DEVICE_API void touched(const Ranges& ranges);
// Whether kernels must report the bytes that they touch.
FAKE_DEVICE_API bool needs_touched_bytes();

}  // namespace fake_device
