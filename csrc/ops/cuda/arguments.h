#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

inline Dtype dtype_of(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kFloat) return Dtype::kFloat;
  return dtype == at::kHalf ? Dtype::kHalf : Dtype::kBFloat16;
}

MasterArgs master_of(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy);

// Returns the elements per memory access for rows of `columns` elements in the first tensor's
// dtype: 16 bytes if the rows of all tensors begin at 16-byte addresses, otherwise one element. A
// flat tensor counts as one row.
int access_width(int64_t columns, std::initializer_list<at::Tensor> tensors);

// Returns the elements per thread for flat tensors of several dtypes: 8 if all begin at 16-byte
// addresses, otherwise 1. An access has 16 bytes; float32 needs two.
int flat_width(std::initializer_list<at::Tensor> tensors);

// Returns the largest power of two up to 256 that divides every row's address.
uint64_t alignment_of(const at::Tensor& tensor);

}  // namespace fastsft::cuda
