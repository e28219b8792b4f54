#pragma once

#include <vector>

#include "shard/strategy.h"
#include "shard/unit_buffers.h"

namespace fastsft {

// Parameters, gradients and optimizer state by ranges over `ranks.shards`; a unit is whole only
// around its use.
class FullShard : public Strategy {
 public:
  FullShard(const StrategyContext& context, const Sharding& ranks);

  void prefetch(size_t unit) override;
  at::Tensor gather(size_t unit) override;
  void release(size_t unit) override { buffers_.give_back(unit); }
  void after_update(size_t) override {}
  bool replicated() const override { return false; }
  int64_t parameter_bytes() const override;
  int64_t buffer_bytes() const override { return buffers_.nbytes(); }

 private:
  void begin_gather(size_t unit);

  UnitBuffers buffers_;
  std::vector<PendingPtr> pending_;
};

// Everything by ranges; whole units only in buffers: of parameters the one computed and its
// neighbour, of gradients the one written and the one reduced.
StateBytes plan_full_shard(const StateDescription& description);

}  // namespace fastsft
