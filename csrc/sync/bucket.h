#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/sync_plan.h"

namespace fastsft {

// Bytes [begin, begin + bytes) of one tensor of a plan, at `offset` of a bucket.
struct SyncPiece {
  size_t tensor = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

// What one broadcast carries. Pieces follow each other without gaps, in the order of the plan.
struct Bucket {
  std::vector<SyncPiece> pieces;
  uint64_t bytes = 0;
};

// vLLM's rule, bit for bit (docs/spec/weight_sync.md, section 2.5): tensors are appended until the
// total is more than `buffer_bytes`; so a chunk may pass it by one tensor, and only by being larger
// than the buffer is a chunk complete. Tensors of no bytes are pieces too.
std::vector<Bucket> cut_vllm_chunks(const SyncPlan& plan, uint64_t buffer_bytes);

// At most `bucket_bytes` each, a multiple of 16. A tensor that does not fit into what is left
// begins a bucket; one larger than a bucket is sliced, and what follows it joins its last slice.
// Tensors of no bytes have no piece.
std::vector<Bucket> cut_native_buckets(const SyncPlan& plan, uint64_t bucket_bytes);

// Whole tensors, together at most `batch_bytes` unless one alone is larger: what a receiver that
// allocates a request at once can hold. Tensors of no bytes are not sent and have no piece.
std::vector<Bucket> cut_tensor_batches(const SyncPlan& plan, uint64_t batch_bytes);

// Copies the pieces of `bucket` into `buffer` (uint8, at least bucket.bytes, on any device).
// `tensors` are those of the plan from `first` on, of any float dtype: what does not have the
// plan's dtype is converted on the way. std::invalid_argument for a tensor of another shape.
void pack(const SyncPlan& plan, const Bucket& bucket, size_t first,
          std::span<const at::Tensor> tensors, const at::Tensor& buffer);

// The other way: from `buffer` into contiguous `tensors` of the plan's dtypes.
void unpack(const SyncPlan& plan, const Bucket& bucket, size_t first,
            std::span<const at::Tensor> tensors, const at::Tensor& buffer);

}  // namespace fastsft
