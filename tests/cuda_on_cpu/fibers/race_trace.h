#pragma once

#include <cstdint>

namespace cuda_on_cpu {

// In a build with -fsanitize=thread (its runtime left out) every load and store of a kernel is
// compared with earlier ones of the launch; in other builds nothing happens. Reported are accesses
// of two threads of which one writes with no barrier between them, of two blocks of which one
// writes, and reads of shared memory that the block has not written.
void begin_trace();
void end_trace();
uint64_t traced_accesses();

}  // namespace cuda_on_cpu
