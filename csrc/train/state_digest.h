#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/gradients.h"
#include "shard/strategy.h"

namespace fastsft {

// CRC-32C of a replayed step's two gradient computations on this rank. `own`: loss and gradients
// before the reduction over ranks; `reduced`: gradients after the reduction.
struct ReplayDigests {
  struct Digest {
    uint32_t own = 0, reduced = 0;
    bool operator==(const Digest&) const = default;
  };
  Digest first, second;
};

// The digest of an accumulation's gradients. It observes them from its construction until `value`.
class GradientDigest {
 public:
  explicit GradientDigest(Gradients& gradients);
  ~GradientDigest() { gradients_.set_observer({}); }
  GradientDigest(const GradientDigest&) = delete;
  GradientDigest& operator=(const GradientDigest&) = delete;

  // Returns the digest. Call after the accumulation; `totals` begins with this rank's loss.
  ReplayDigests::Digest value(const at::Tensor& totals, size_t num_units);

 private:
  Gradients& gradients_;
  uint32_t own_ = 0;
};

// CRC-32C of a unit. `state`: this rank's master and optimizer state, equal on all ranks with the
// same `shard`. `parameters`: the whole unit in the compute dtype, equal on all ranks.
struct UnitDigest {
  std::string unit;
  int shard = 0;
  uint32_t state = 0, parameters = 0;
};

// Returns the digests of all units, which are gathered in turn. Collective.
std::vector<UnitDigest> digest_states(Strategy& strategy, const std::vector<ParamUnit>& units);

}  // namespace fastsft
