#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/gradients.h"
#include "shard/strategy.h"

namespace fastsft {

// CRC-32C of what two computations of one step gave on this rank. `own`: its loss and what it gave
// to the sums over ranks; `reduced`: what it got from them.
struct ReplayDigests {
  struct Digest {
    uint32_t own = 0, reduced = 0;
    bool operator==(const Digest&) const = default;
  };
  Digest first, second;
};

// Takes in the gradients of one accumulation, from its making to `value`.
class GradientDigest {
 public:
  explicit GradientDigest(Gradients& gradients);
  ~GradientDigest() { gradients_.set_observer({}); }
  GradientDigest(const GradientDigest&) = delete;
  GradientDigest& operator=(const GradientDigest&) = delete;

  // After the accumulation; `totals` begins with this rank's loss.
  ReplayDigests::Digest value(const at::Tensor& totals, size_t num_units);

 private:
  Gradients& gradients_;
  uint32_t own_ = 0;
};

// CRC-32C of one unit. `state`: master and optimizer state of this rank, the same for all ranks
// with the same `shard`; `parameters`: the whole unit that it computes with, the same for all
// ranks.
struct UnitDigest {
  std::string unit;
  int shard = 0;
  uint32_t state = 0, parameters = 0;
};

// Collective: units are gathered one after the other.
std::vector<UnitDigest> digest_states(Strategy& strategy, const std::vector<ParamUnit>& units);

}  // namespace fastsft
