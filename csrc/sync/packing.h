#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "sync/bucket.h"

namespace fastsft {

// Copies the pieces of `bucket` into `buffer` (uint8, at least bucket.bytes, on any device).
// `tensors` are those of the plan from `first` on, of any float dtype: what does not have the
// plan's dtype is converted on the way. std::invalid_argument for a tensor of another shape.
void pack(const SyncPlan& plan, const Bucket& bucket, size_t first,
          std::span<const at::Tensor> tensors, const at::Tensor& buffer);

// The other way: from `buffer` into contiguous `tensors` of the plan's dtypes.
void unpack(const SyncPlan& plan, const Bucket& bucket, size_t first,
            std::span<const at::Tensor> tensors, const at::Tensor& buffer);

}  // namespace fastsft
