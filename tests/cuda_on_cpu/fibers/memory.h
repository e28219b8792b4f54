#pragma once

#include <cstddef>

namespace cuda_on_cpu {

inline constexpr size_t kSharedWithoutAsking = size_t{48} << 10;
inline constexpr size_t kMostShared = size_t{227} << 10;

// Dynamic shared memory of the launch that begins; its exact end, for AddressSanitizer.
void begin_shared_memory(size_t dynamic_bytes);
void end_shared_memory();
// Before a block: every byte holds the schedule's pattern.
void fill_shared_memory();
// After a block: static and dynamic memory that it used together.
void check_shared_memory();
bool is_shared_memory(const void* address);
// Bytes of dynamic shared memory that the kernel may have.
size_t dynamic_limit(const void* kernel);

}  // namespace cuda_on_cpu
