#pragma once

#include <vector>

#include "shard/strategy.h"

namespace fastsft {

// Parameters whole on every rank between steps; gradients and optimizer state by ranges over
// `ranks.shards`. A unit is gathered as soon as it has been updated, next to the update of those
// after it and the forward pass of those before it; who uses the unit first waits.
class ShardGradOp : public Strategy {
 public:
  ShardGradOp(const StrategyContext& context, const Sharding& ranks);

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override;
  void release(size_t) override {}
  void after_update(size_t unit) override;
  void await_gathers() override;
  bool replicated() const override { return false; }
  int64_t parameter_bytes() const override;
  int64_t buffer_bytes() const override { return 0; }

 private:
  std::vector<at::Tensor> whole_;
  std::vector<PendingPtr> pending_;
};

// Parameters whole; gradients by ranges next to whole ones in float32, and after the update one
// gather at a time.
StateBytes plan_shard_grad_op(const StateDescription& description);

}  // namespace fastsft
