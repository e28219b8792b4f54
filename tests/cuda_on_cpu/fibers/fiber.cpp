#include "fibers/fiber.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the switch of stacks is written for x86-64"
#endif

namespace cuda_on_cpu {
namespace {

struct Fiber {
  void* top = nullptr;   // of the stack while the fiber waits
  void* fake = nullptr;  // AddressSanitizer's own frames
};

std::array<Fiber, kMaxFibers> fibers;
Fiber scheduler;
unsigned running;
const void* scheduler_stack;
size_t scheduler_stack_bytes;

char* stacks() {
  static char* const begin =
      static_cast<char*>(mmap(nullptr, kMaxFibers * kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return begin;
}
char* stack_of(unsigned index) { return stacks() + index * kStackBytes; }

// Saves the registers that a call keeps, and the stack's top at `from`; goes on at `to`.
__attribute__((naked, noinline)) void switch_stack(void** /*from*/, void* /*to*/) {
  asm volatile(
      "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
      "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
      "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
}

// AddressSanitizer must know which stack it looks at.
void announce_switch([[maybe_unused]] void** keep, [[maybe_unused]] const void* stack,
                     [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(keep, stack, bytes);
#endif
}
void end_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** from,
                [[maybe_unused]] size_t* bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, from, bytes);
#endif
}

}  // namespace

void prepare_fiber(unsigned index, void (*main)(), [[maybe_unused]] bool left_before_its_end) {
  Fiber& fiber = fibers[index];
  char* const end = stack_of(index) + kStackBytes;
#ifdef __SANITIZE_ADDRESS__
  const size_t used = left_before_its_end ? kStackBytes : 2048;
  __asan_unpoison_memory_region(end - used, used);
#endif
  auto** top = reinterpret_cast<void**>(end - 64);  // a multiple of 16
  top[-1] = nullptr;                                // nobody to return to
  top[-2] = reinterpret_cast<void*>(main);
  for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
  fiber = {.top = &top[-8]};
}

void enter_fiber(unsigned index) {
  running = index;
  announce_switch(&scheduler.fake, stack_of(index), kStackBytes);
  switch_stack(&scheduler.top, fibers[index].top);
  end_switch(scheduler.fake, nullptr, nullptr);
}

void leave_fiber() {
  Fiber& self = fibers[running];
  announce_switch(&self.fake, scheduler_stack, scheduler_stack_bytes);
  switch_stack(&self.top, scheduler.top);
  end_switch(self.fake, &scheduler_stack, &scheduler_stack_bytes);
}

void leave_for_good() {
  announce_switch(nullptr, scheduler_stack, scheduler_stack_bytes);
  switch_stack(&fibers[running].top, scheduler.top);
  std::abort();
}

void fiber_has_begun() { end_switch(nullptr, &scheduler_stack, &scheduler_stack_bytes); }

bool on_a_fiber_stack(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  return at >= stacks() && at < stacks() + kMaxFibers * kStackBytes;
}

}  // namespace cuda_on_cpu
