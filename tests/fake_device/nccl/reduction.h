#pragma once

#include <nccl.h>

#include <cstddef>

namespace fake_device {

size_t bytes_of(ncclDataType_t type);

// sum[i] = sum[i] op other[i]; 16-bit floats are added in float32 and rounded after each addition.
void reduce_into(char* sum, const char* other, size_t count, ncclDataType_t type, ncclRedOp_t op);

// The last step of ncclAvg.
void divide(char* data, size_t count, ncclDataType_t type, int by);

}  // namespace fake_device
