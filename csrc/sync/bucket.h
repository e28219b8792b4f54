#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/sync_plan.h"

namespace fastsft {

// Bytes [begin, begin + bytes) of tensor number `tensor` of a plan, stored at `offset` in a bucket.
struct SyncPiece {
  size_t tensor = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

// The content of one broadcast. Pieces follow each other without gaps, in plan order.
struct Bucket {
  std::vector<SyncPiece> pieces;
  uint64_t bytes = 0;
};

// Cuts the plan as vLLM does, bit for bit (docs/spec/weight_sync.md, section 2.5). Tensors are
// appended until their total exceeds `buffer_bytes`, so a chunk exceeds the buffer by at most its
// last tensor. A chunk that exactly fills the buffer is not complete yet. Empty tensors have a
// piece, too.
std::vector<Bucket> cut_vllm_chunks(const SyncPlan& plan, uint64_t buffer_bytes);

// Cuts the plan into buckets of at most `bucket_bytes`, a multiple of 16. A tensor that does not
// fit into the rest of a bucket begins a new bucket. A tensor larger than a bucket is sliced, and
// the next tensors share the bucket of its last slice. Empty tensors have no piece.
std::vector<Bucket> cut_native_buckets(const SyncPlan& plan, uint64_t bucket_bytes);

// Groups whole tensors into batches of at most `batch_bytes`; a larger tensor is a batch of its
// own. For receivers that allocate memory for a whole request. Empty tensors are not sent and have
// no piece.
std::vector<Bucket> cut_tensor_batches(const SyncPlan& plan, uint64_t batch_bytes);

// Copies the pieces of `bucket` into `buffer` (uint8, at least bucket.bytes, any device).
// `tensors[i]` is tensor `first + i` of the plan, in any float dtype; it is converted to the plan's
// dtype if needed. Throws std::invalid_argument if a shape differs.
void pack(const SyncPlan& plan, const Bucket& bucket, size_t first,
          std::span<const at::Tensor> tensors, const at::Tensor& buffer);

// Copies the pieces from `buffer` into contiguous `tensors`, which must have the plan's dtypes.
void unpack(const SyncPlan& plan, const Bucket& bucket, size_t first,
            std::span<const at::Tensor> tensors, const at::Tensor& buffer);

}  // namespace fastsft
