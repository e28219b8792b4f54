#pragma once

#include <cstddef>

namespace fake_device {

enum class Place { kDevice, kPinned, kPageable };

Place place_of(const void* pointer);
// Whether `bytes` from `pointer` on are inside one allocation, or not in any.
bool is_inside(const void* pointer, size_t bytes);

}  // namespace fake_device
