// In the place of fibers/race_trace.cpp: collects the bytes that a launch reads and writes. Kernels
// are compiled with -fsanitize=thread, whose runtime these functions replace.
#include <bitset>
#include <memory>
#include <unordered_map>

#include "device/device.h"
#include "fibers/fiber.h"
#include "fibers/memory.h"
#include "fibers/race_trace.h"

namespace cuda_on_cpu {
namespace {

constexpr uintptr_t kPage = 4096;

// Two bytes each: the narrowest type that kernels write is bfloat16.
using Touched = std::bitset<kPage / 2>;
struct Page {
  Touched read, written;
};

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
bool tracing;
uint64_t accesses;

void access(const void* at, size_t bytes, bool write) {
  if (!tracing || on_a_fiber_stack(at) || is_shared_memory(at)) return;
  ++accesses;
  const auto begin = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t byte = begin & ~uintptr_t{1}; byte < begin + bytes; byte += 2) {
    auto& page = pages[byte / kPage];
    if (!page) page = std::make_unique<Page>();
    (write ? page->written : page->read).set(byte % kPage / 2);
  }
}

void add_ranges(fake_device::Ranges& ranges, uintptr_t page, const Touched& bits, bool write) {
  for (size_t i = 0; i < bits.size();) {
    if (!bits[i]) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < bits.size() && bits[i]) ++i;
    ranges.push_back({page + begin * 2, page + i * 2, write});
  }
}

}  // namespace

void begin_trace() {
  pages.clear();
  tracing = fake_device::needs_touched_bytes();
}

void end_trace() {
  if (!tracing) return;
  tracing = false;
  fake_device::Ranges ranges;
  for (const auto& [number, page] : pages) {
    const uintptr_t begin = number * kPage;
    const auto* pointer = reinterpret_cast<const void*>(begin);
    if (!fake_device::is_device_memory(pointer) && !fake_device::is_pinned_memory(pointer))
      continue;
    add_ranges(ranges, begin, page->read, false);
    add_ranges(ranges, begin, page->written, true);
  }
  fake_device::touched(ranges);
}

uint64_t traced_accesses() { return accesses; }

}  // namespace cuda_on_cpu

#define HOOK(name, bytes, write) \
  extern "C" void __tsan_##name(void* at) { cuda_on_cpu::access(at, bytes, write); }
#define HOOKS(bytes)                        \
  HOOK(read##bytes, bytes, false)           \
  HOOK(write##bytes, bytes, true)           \
  HOOK(unaligned_read##bytes, bytes, false) \
  HOOK(unaligned_write##bytes, bytes, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t bytes) { cuda_on_cpu::access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { cuda_on_cpu::access(at, bytes, true); }
}
