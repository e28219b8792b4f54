#pragma once

#include <cstddef>

// Threads of a block that give way to each other on one thread of the host.
namespace cuda_on_cpu {

inline constexpr size_t kStackBytes = size_t{256} << 10;
inline constexpr unsigned kMaxFibers = 1024;

// Fiber `index` will run `main`, which never returns: it ends with leave_for_good().
void prepare_fiber(unsigned index, void (*main)(), bool left_before_its_end);
// From the scheduler into a fiber, until it leaves.
void enter_fiber(unsigned index);
// From the fiber that runs back to the scheduler.
void leave_fiber();
[[noreturn]] void leave_for_good();
// Called first on a fiber's stack.
void fiber_has_begun();
bool on_a_fiber_stack(const void* address);

}  // namespace cuda_on_cpu
