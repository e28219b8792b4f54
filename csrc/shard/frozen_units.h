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

// Frozen parameters, stored in the compute dtype or in `dtype`, without gradients and optimizer
// state. They are whole on every rank, or sharded over `shards` and gathered only for their use.
class FrozenUnits {
 public:
  struct Options {
    at::TensorOptions compute;
    FrozenDtype dtype = FrozenDtype::kCompute;
    Communicator* shards = nullptr;  // null: units are whole on every rank
    size_t resident_units = 0;       // units kept gathered besides the current and the next unit
    bool prefetch = true;
  };
  FrozenUnits(const std::vector<ParamUnit>& units, const Options& options);

  void prefetch(size_t unit);
  // Returns the whole padded flat parameters, valid until `release`.
  at::Tensor gather(size_t unit);
  void release(size_t unit);

  // Returns this rank's states, which have no optimizer state. `master` holds the compute copy;
  // with `nf4` it holds only the elements that are not stored in 4 bits.
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
  std::optional<UnitBuffers> buffers_;  // gathered units in the compute dtype
  std::optional<UnitBuffers> packed_;   // bytes of 4-bit units while they are gathered
  std::vector<PendingPtr> pending_;
};

}  // namespace fastsft
