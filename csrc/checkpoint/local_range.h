#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "shard/param_unit.h"
#include "shard/unit_state.h"
#include "storage/dtype.h"

namespace fastsft {

// Whether this rank owns the whole unit: one rank, or a strategy that replicates.
bool owns_whole(const UnitState& state);

// Writes those elements of `source` that this rank owns into `moment`, one of the state's with a
// value of every element (on any device), or into its master. `data` holds the elements of
// `source`, converted from `dtype`; only the part that is owned is touched. With 4 bits `source` is
// a whole tensor, and all of it is read.
void store_owned(const UnitState& state, const at::Tensor& moment, ElementRange source, DType dtype,
                 const std::byte* data);
// The same for value `index` of the state: `data` holds what a checkpoint stores of `source`.
void store_values(const UnitState& state, size_t index, ElementRange source, DType dtype,
                  const std::byte* data);
// The type of a checkpoint's values.
DType stored_dtype(const StateSpec& spec);
void store_owned_master(const UnitState& state, ElementRange source, DType dtype,
                        const std::byte* data);

// Of a unit with `nf4`: the linear at `offset` receives `values`, whole (any shape, floating dtype
// and device), as rounded to the compute dtype. std::invalid_argument, naming it, for values that
// are not finite.
void store_in_four_bits(const UnitState& state, int64_t offset, const at::Tensor& values);

}  // namespace fastsft
