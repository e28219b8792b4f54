#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/batch.h"
#include "data/host_batch.h"

namespace fastsft {

// Bytes of the arrays of a batch laid end to end, each beginning at a multiple of 64.
int64_t packed_bytes(const HostBatch& batch);
// Writes them to `to` (aligned to 64 bytes).
void pack(const HostBatch& batch, std::byte* to);
// The arrays as tensors inside `block` (uint8), beginning at byte `offset`, a multiple of 64.
Batch unpack(const HostBatch& batch, const at::Tensor& block, int64_t offset);

}  // namespace fastsft
