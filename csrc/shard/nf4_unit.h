#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/param_unit.h"

namespace fastsft {

// What Nf4Unit holds of a unit, and what it is gathered to; `ranks` hold the blocks together.
struct Nf4Sizes {
  Nf4Sizes(const ParamUnit& unit, int ranks);

  int64_t blocks = 0;        // of the linears, for all ranks
  int64_t range_blocks = 0;  // of one rank
  int64_t scales = 0;        // floats, on every rank
  int64_t rest = 0;          // elements that stay in the compute dtype, on every rank

  int64_t whole_bytes() const;                 // of all blocks
  int64_t held_bytes(int64_t itemsize) const;  // of one rank; `itemsize` is the compute dtype's
};

// A unit that nothing updates, its linears in 4 bits (ops/nf4/nf4.h): their bytes whole on every
// rank or by ranges, the scales of scales and what else the unit has on every rank.
class Nf4Unit {
 public:
  // std::invalid_argument where a linear is no multiple of kNf4Block. `levels`: nf4_levels.
  Nf4Unit(const ParamUnit& unit, const at::TensorOptions& compute, const at::Tensor& levels,
          int ranks, int rank);

  // Whether the slot at `offset` is one of the linears.
  bool holds(int64_t offset) const { return offset < unit_.linear_end(); }
  // Quantises the linear at `offset`: `values`, whole, flat, in the compute dtype, finite. This
  // rank keeps its range.
  void store(int64_t offset, const at::Tensor& values);
  // [range_blocks, kNf4BlockBytes], what this rank holds of them.
  const at::Tensor& range() const { return range_; }
  // Elements [linear_end, numel) of the unit.
  const at::Tensor& rest() const { return rest_; }

  // The unit in the compute dtype from the bytes of all ranks.
  void unpack(const at::Tensor& whole_bytes, const at::Tensor& flat) const;
  int64_t nbytes() const;

 private:
  struct Linear {
    const ParamSlot* slot;
    at::Tensor scales;
  };
  const ParamUnit& unit_;
  at::TensorOptions compute_;
  at::Tensor levels_;
  int64_t first_block_;  // of this rank
  at::Tensor range_;
  std::vector<Linear> linears_;
  at::Tensor rest_;
};

}  // namespace fastsft
