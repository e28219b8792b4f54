#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/batch.h"
#include "data/host_batch.h"

namespace fastsft {

// Bytes of the arrays of a batch laid end to end, each beginning at a multiple of 64.
int64_t packed_bytes(const HostBatch& batch);
// The most bytes of `batches` batches with that many tokens and labels in all.
int64_t most_packed_bytes(int64_t tokens, int64_t labels, int64_t batches);
// Writes them to `to` (aligned to 64 bytes).
void pack(const HostBatch& batch, std::byte* to);
// The arrays as tensors inside `block` (uint8), beginning at byte `offset`, a multiple of 64.
Batch unpack(const HostBatch& batch, const at::Tensor& block, int64_t offset);

}  // namespace fastsft
