#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "shard/param_unit.h"
#include "shard/unit_state.h"
#include "storage/dtype.h"

namespace fastsft {

// Returns true if this rank holds the whole unit: there is one rank, or the strategy replicates.
bool owns_whole(const UnitState& state);

// Stores the elements in `source` that this rank owns. They go to `moment`, an optimizer state
// tensor with a value per element (on any device), or a float32 master. `data`: the elements in
// `source`, as `dtype`; only the owned elements are read.
void store_owned(const UnitState& state, const at::Tensor& moment, ElementRange source, DType dtype,
                 const std::byte* data);
// Stores the values for the elements in `source` in optimizer state tensor `index`. `data`: the
// values as a checkpoint stores them.
void store_values(const UnitState& state, size_t index, ElementRange source, DType dtype,
                  const std::byte* data);
// Returns the dtype that an optimizer state tensor has in a checkpoint.
DType stored_dtype(const StateSpec& spec);
// Stores the elements in `source` that this rank owns in the master weights. For a linear layer in
// 4 bits, `source` must be a whole tensor, and all its elements are read.
void store_owned_master(const UnitState& state, ElementRange source, DType dtype,
                        const std::byte* data);

// Stores the linear layer at `offset` of a unit with `nf4` in 4 bits. `values`: the whole weight
// (any shape, floating dtype and device), first rounded to the compute dtype. Throws
// std::invalid_argument with the layer's name if a value is not finite.
void store_in_four_bits(const UnitState& state, int64_t offset, const at::Tensor& values);

}  // namespace fastsft
