#pragma once

#include <cstdint>
#include <random>

#include "fibers/kernel.h"

namespace cuda_on_cpu {

// Where the thread that runs is: what the trace of accesses compares.
struct Place {
  uint64_t launch, block;
  unsigned thread, epoch;  // epoch: block barriers that the thread has passed
};
Place place_now();
unsigned threads_of_block();

// Runs one block to its end. False: the launch must stop (a trap).
bool run_block(uint64_t launch, uint64_t block, const dim3& threads, void (*call)(void*),
               void* arguments, std::mt19937& random);

}  // namespace cuda_on_cpu
