#include "fibers/race_trace.h"

#include <array>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "fibers/block.h"
#include "fibers/fiber.h"
#include "fibers/memory.h"
#include "fibers/reports.h"

namespace cuda_on_cpu {
namespace {

uint64_t traced;

#ifdef CUDA_ON_CPU_TRACE

struct Stamp {
  uint64_t block = 0;
  unsigned thread = 0, epoch = 0;
  bool set = false;
};
// Two bytes of memory: the narrowest type that kernels write is bfloat16. Two readers are enough to
// find one that conflicts with a writer, as all readers of an epoch conflict with it or none.
struct Cell {
  Stamp write, read[2];
};
using Page = std::array<Cell, 2048>;

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
std::unordered_set<const void*> reported;  // places in the code: one report each and launch
bool tracing;

Cell& cell_at(uintptr_t address) {
  auto& page = pages[address >> 12];
  if (!page) page = std::make_unique<Page>();
  return (*page)[(address & 4095) / 2];
}

bool conflict(const Stamp& earlier, const Place& now, bool shared) {
  if (!earlier.set) return false;
  if (earlier.block != now.block) return !shared;
  return earlier.thread != now.thread && earlier.epoch == now.epoch;
}

void note(const char* what, const void* code, const Stamp& earlier, const Place& now) {
  if (!reported.insert(code).second) return;
  report(std::string(what) + ": block " + std::to_string(now.block) + " thread " +
         std::to_string(now.thread) + " and block " + std::to_string(earlier.block) + " thread " +
         std::to_string(earlier.thread));
}

void written(Cell& cell, const Place& now, bool shared, const void* code) {
  if (conflict(cell.write, now, shared)) note("two writes", code, cell.write, now);
  for (const Stamp& reader : cell.read) {
    if (conflict(reader, now, shared)) note("a write next to a read", code, reader, now);
  }
  cell.write = {now.block, now.thread, now.epoch, true};
}

void was_read(Cell& cell, const Place& now, bool shared, const void* code) {
  if (conflict(cell.write, now, shared)) note("a read next to a write", code, cell.write, now);
  if (shared && !(cell.write.set && cell.write.block == now.block)) {
    note("a read of shared memory that was not written", code, cell.write, now);
  }
  Stamp& first = cell.read[0];
  const bool earlier = !first.set || first.block != now.block || first.epoch != now.epoch;
  const bool own = first.block == now.block && first.thread == now.thread;
  Stamp& kept = earlier || own ? first : cell.read[1];
  if (earlier && first.set && first.block != now.block) cell.read[1] = first;
  kept = {now.block, now.thread, now.epoch, true};
}

void access(const void* at, size_t bytes, bool write, const void* code) {
  if (!tracing || on_a_fiber_stack(at)) return;
  ++traced;
  const bool shared = is_shared_memory(at);
  const Place now = place_now();
  const auto begin = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t address = begin & ~uintptr_t{1}; address < begin + bytes; address += 2) {
    Cell& cell = cell_at(address);
    if (write)
      written(cell, now, shared, code);
    else
      was_read(cell, now, shared, code);
  }
}

#endif

}  // namespace

#ifdef CUDA_ON_CPU_TRACE
void begin_trace() {
  pages.clear();
  reported.clear();
  tracing = true;
}
void end_trace() { tracing = false; }
#else
void begin_trace() {}
void end_trace() {}
#endif

uint64_t traced_accesses() { return traced; }

}  // namespace cuda_on_cpu

#ifdef CUDA_ON_CPU_TRACE
// What the compiler calls before each access.
#define HOOK(name, bytes, write)                                        \
  extern "C" void __tsan_##name(void* at) {                             \
    cuda_on_cpu::access(at, bytes, write, __builtin_return_address(0)); \
  }
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
void __tsan_read_range(void* at, size_t bytes) {
  cuda_on_cpu::access(at, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* at, size_t bytes) {
  cuda_on_cpu::access(at, bytes, true, __builtin_return_address(0));
}
}
#endif
