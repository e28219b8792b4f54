#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace fastsft {

using Shape = std::vector<int64_t>;

// Many tensors that are cut into rows over `world_size` ranks, gathered by one collective: what
// costs is the operation, not its bytes. Rows are cut as torch.chunk cuts them; every tensor has a
// slot of whole chunks in a rank's bytes, which begins at a multiple of 64.

// This rank's rows of tensors of `shapes` as bytes, the same number on every rank, on the rows'
// device. std::invalid_argument where a tensor has other rows than the rank should.
at::Tensor pack_rows(std::span<const at::Tensor> rows, const std::vector<Shape>& shapes,
                     int64_t rank, int64_t world_size);

// From every rank's bytes, in their order: the whole tensors, with the dtypes of `rows`. They share
// memory that is nobody else's.
std::vector<at::Tensor> join_rows(const at::Tensor& gathered, std::span<const at::Tensor> rows,
                                  const std::vector<Shape>& shapes, int64_t world_size);

}  // namespace fastsft
