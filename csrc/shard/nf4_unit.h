#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/param_unit.h"

namespace fastsft {

// Sizes of an Nf4Unit whose blocks are sharded over `ranks`.
struct Nf4Sizes {
  Nf4Sizes(const ParamUnit& unit, int ranks);

  int64_t blocks = 0;        // of the linears, for all ranks
  int64_t range_blocks = 0;  // of one rank
  int64_t scales = 0;        // floats, on every rank
  int64_t rest = 0;          // elements that stay in the compute dtype, on every rank

  int64_t whole_bytes() const;                 // of all blocks
  int64_t held_bytes(int64_t itemsize) const;  // of one rank; `itemsize` is the compute dtype's
};

// A frozen unit with its linears in 4 bits (ops/nf4/nf4.h). Their bytes are whole on every rank or
// sharded; the scales of scales and the other parameters are on every rank.
class Nf4Unit {
 public:
  // std::invalid_argument if a linear is no multiple of kNf4Block. `levels`: nf4_levels.
  Nf4Unit(const ParamUnit& unit, const at::TensorOptions& compute, const at::Tensor& levels,
          int ranks, int rank);

  // True if the slot at `offset` is a linear.
  bool holds(int64_t offset) const { return offset < unit_.linear_end(); }
  // Quantises the linear at `offset`: `values`, whole, flat, in the compute dtype, finite. This
  // rank keeps its range.
  void store(int64_t offset, const at::Tensor& values);
  // This rank's blocks, [range_blocks, kNf4BlockBytes].
  const at::Tensor& range() const { return range_; }
  // Elements [linear_end, numel) of the unit.
  const at::Tensor& rest() const { return rest_; }

  // Writes the unit in the compute dtype to `flat`, from the bytes of all ranks.
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
