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

// Elements of one access to rows of `columns` elements of the first tensor's dtype: 16 bytes when
// the rows of all tensors (those of two dimensions; flat ones are one row) begin at 16-byte
// addresses, otherwise one element.
int access_width(int64_t columns, std::initializer_list<at::Tensor> tensors);

// Elements that one thread takes at once from flat tensors of several dtypes: 8 when all begin at
// 16-byte addresses (accesses of 16 bytes, two for float32), otherwise 1.
int flat_width(std::initializer_list<at::Tensor> tensors);

// The largest power of two up to 256 that divides the address of every row.
uint64_t alignment_of(const at::Tensor& tensor);

}  // namespace fastsft::cuda
