// Device and pinned memory: pages of the host, each allocation followed by a page nobody may touch.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "state.h"

namespace fake_device {
namespace {

constexpr size_t kPage = 4096;

struct Block {
  size_t bytes;
  bool on_device;
};

std::map<uintptr_t, Block>& blocks() {
  static auto* const only = new std::map<uintptr_t, Block>;
  return *only;
}

const std::pair<const uintptr_t, Block>* block_of(const void* pointer) {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  auto next = blocks().upper_bound(at);
  if (next == blocks().begin()) return nullptr;
  const auto& found = *std::prev(next);
  return at < found.first + found.second.bytes ? &found : nullptr;
}

size_t in_pages(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

cudaError_t allocate(void** out, size_t bytes, bool on_device) {
  State& s = state();
  const std::unique_lock lock(s.mutex);
  *out = nullptr;
  if (on_device && s.used_bytes + bytes > s.limit_bytes) return cudaErrorMemoryAllocation;
  void* memory = ::mmap(nullptr, in_pages(bytes) + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  ::mprotect(static_cast<char*>(memory) + in_pages(bytes), kPage, PROT_NONE);
  if (s.poison) std::memset(memory, 0xFF, bytes);  // NaN in every float format
  blocks()[reinterpret_cast<uintptr_t>(memory)] = {bytes, on_device};
  if (on_device) s.used_bytes += bytes;
  *out = memory;
  return cudaSuccess;
}

cudaError_t release(void* pointer, bool on_device) {
  if (!pointer) return cudaSuccess;
  wait_device();  // as cudaFree and cudaFreeHost do
  State& s = state();
  const std::unique_lock lock(s.mutex);
  const auto found = blocks().find(reinterpret_cast<uintptr_t>(pointer));
  if (found == blocks().end() || found->second.on_device != on_device) {
    report_wrong_call("free of memory that is not allocated");
    return cudaErrorInvalidValue;
  }
  const size_t bytes = found->second.bytes;
  if (on_device) s.used_bytes -= bytes;
  forget_accesses(pointer, bytes);
  ::munmap(pointer, in_pages(bytes) + kPage);
  blocks().erase(found);
  return cudaSuccess;
}

}  // namespace

Place place_of(const void* pointer) {
  const std::unique_lock lock(state().mutex);
  const auto* block = block_of(pointer);
  if (!block) return Place::kPageable;
  return block->second.on_device ? Place::kDevice : Place::kPinned;
}

bool is_inside(const void* pointer, size_t bytes) {
  const std::unique_lock lock(state().mutex);
  const auto* block = block_of(pointer);
  return !block ||
         reinterpret_cast<uintptr_t>(pointer) + bytes <= block->first + block->second.bytes;
}

bool is_device_memory(const void* pointer) { return place_of(pointer) == Place::kDevice; }
bool is_pinned_memory(const void* pointer) { return place_of(pointer) == Place::kPinned; }

}  // namespace fake_device

using namespace fake_device;

EXPORTED cudaError_t cudaMalloc(void** out, size_t bytes) {
  COUNT_CALL();
  return returned(allocate(out, bytes, true));
}
EXPORTED cudaError_t cudaFree(void* pointer) {
  COUNT_CALL();
  return returned(release(pointer, true));
}
EXPORTED cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  COUNT_CALL();
  return returned(allocate(out, bytes, false));
}
EXPORTED cudaError_t cudaFreeHost(void* pointer) {
  COUNT_CALL();
  return returned(release(pointer, false));
}
EXPORTED cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  COUNT_CALL();
  const std::unique_lock lock(state().mutex);
  blocks()[reinterpret_cast<uintptr_t>(pointer)] = {bytes, false};
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaHostUnregister(void* pointer) {
  COUNT_CALL();
  wait_device();
  const std::unique_lock lock(state().mutex);
  blocks().erase(reinterpret_cast<uintptr_t>(pointer));
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  COUNT_CALL();
  *total = state().memory_bytes;
  *free = state().memory_bytes - state().others_bytes - state().used_bytes;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                              const void* pointer) {
  COUNT_CALL();
  *attributes = {};
  const Place place = place_of(pointer);
  auto* const same = const_cast<void*>(pointer);
  attributes->type = place == Place::kDevice   ? cudaMemoryTypeDevice
                     : place == Place::kPinned ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
  cudaGetDevice(&attributes->device);
  if (place != Place::kPageable) attributes->devicePointer = same;
  if (place == Place::kPinned) attributes->hostPointer = same;
  return returned(cudaSuccess);
}
