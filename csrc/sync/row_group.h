#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace fastsft {

using Shape = std::vector<int64_t>;

// Gathers many tensors, which are sharded by rows over `world_size` ranks, in one collective: the
// cost is in the number of calls, not in the bytes. Rows are divided as by torch.chunk. In a rank's
// bytes, each tensor has a slot for a full chunk, which begins at a multiple of 64.

// Packs this rank's rows of tensors with these `shapes` into a byte tensor on the rows' device. The
// size is the same on every rank. Throws std::invalid_argument if a tensor does not have the rows
// that belong to this rank.
at::Tensor pack_rows(std::span<const at::Tensor> rows, const std::vector<Shape>& shapes,
                     int64_t rank, int64_t world_size);

// Returns the whole tensors from the bytes of all ranks, in rank order, with the dtypes of `rows`.
// The tensors share one new allocation.
std::vector<at::Tensor> join_rows(const at::Tensor& gathered, std::span<const at::Tensor> rows,
                                  const std::vector<Shape>& shapes, int64_t world_size);

}  // namespace fastsft
