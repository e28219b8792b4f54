#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "shard/communicator.h"
#include "shard/param_unit.h"
#include "shard/state_options.h"
#include "shard/unit_buffers.h"
#include "shard/unit_state.h"

namespace fastsft {

// Frozen parameters in the compute dtype or `dtype`, without gradients and optimizer state: whole
// on every rank, or sharded over `shards` and gathered only around their use.
class FrozenUnits {
 public:
  struct Options {
    at::TensorOptions compute;
    FrozenDtype dtype = FrozenDtype::kCompute;
    Communicator* shards = nullptr;  // null: whole on every rank
    size_t resident_units = 0;       // whole at once next to the one computed and its neighbour
    bool prefetch = true;
  };
  FrozenUnits(const std::vector<ParamUnit>& units, const Options& options);

  void prefetch(size_t unit);
  // Returns the whole padded flat parameters, valid until `release`.
  at::Tensor gather(size_t unit);
  void release(size_t unit);

  // This rank's states, without optimizer state. `master` is the compute copy; with `nf4` only the
  // elements that are not in 4 bits.
  const std::vector<UnitState>& states() const { return states_; }
  bool by_ranges() const { return options_.shards != nullptr; }
  int64_t parameter_bytes() const;
  int64_t buffer_bytes() const;

 private:
  void add_state(const ParamUnit& unit, const at::Tensor& nf4_levels);
  void make_buffers();
  void begin_gather(size_t unit);
  void finish_gather(size_t unit);
  at::Tensor unpacked(size_t unit);

  const std::vector<ParamUnit>& units_;
  Options options_;
  std::vector<UnitState> states_;
  std::optional<UnitBuffers> buffers_;  // units in the compute dtype
  std::optional<UnitBuffers> packed_;   // bytes of units in 4 bits, while they are gathered
  std::vector<PendingPtr> pending_;
};

}  // namespace fastsft
