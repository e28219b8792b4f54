#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/param_unit.h"

namespace fastsft {

// The sizes of an Nf4Unit whose blocks are sharded over `ranks`.
struct Nf4Sizes {
  Nf4Sizes(const ParamUnit& unit, int ranks);

  int64_t blocks = 0;        // NF4 blocks of the linears, over all ranks
  int64_t range_blocks = 0;  // NF4 blocks of one rank
  int64_t scales = 0;        // number of float scales, whole on every rank
  int64_t rest = 0;          // elements in the compute dtype, whole on every rank

  int64_t whole_bytes() const;                 // bytes of all blocks
  int64_t held_bytes(int64_t itemsize) const;  // of one rank; itemsize: the compute dtype's
};

// A frozen unit whose linears are stored in 4 bits (ops/nf4/nf4.h). The 4-bit blocks are whole on
// every rank or sharded. The scales and the other parameters are whole on every rank.
class Nf4Unit {
 public:
  // Throws std::invalid_argument if a linear's size is no multiple of kNf4Block. `levels` come from
  // nf4_levels.
  Nf4Unit(const ParamUnit& unit, const at::TensorOptions& compute, const at::Tensor& levels,
          int ranks, int rank);

  // True if the slot at `offset` is a linear, which is stored in 4 bits.
  bool holds(int64_t offset) const { return offset < unit_.linear_end(); }
  // Quantises the linear at `offset` and keeps this rank's range. `values`: the whole linear, flat,
  // finite, in the compute dtype.
  void store(int64_t offset, const at::Tensor& values);
  // Returns this rank's blocks [range_blocks, kNf4BlockBytes].
  const at::Tensor& range() const { return range_; }
  // Returns the elements [linear_end, numel) of the unit, in the compute dtype.
  const at::Tensor& rest() const { return rest_; }

  // Dequantises the unit from the bytes of all ranks into `flat`, in the compute dtype.
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
  int64_t first_block_;  // number of this rank's first block
  at::Tensor range_;
  std::vector<Linear> linears_;
  at::Tensor rest_;
};

}  // namespace fastsft
