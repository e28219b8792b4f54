#pragma once

#include <vector>

#include "shard/strategy.h"

namespace fastsft {

// Parameters whole on every rank between steps; gradients and optimizer state by ranges over
// `ranks.shards`. One all-gather a unit after the update.
class ShardGradOp : public Strategy {
 public:
  ShardGradOp(const StrategyContext& context, const Sharding& ranks);

  void prefetch(size_t) override {}
  at::Tensor gather(size_t unit) override { return whole_[unit]; }
  void release(size_t) override {}
  void after_update() override;
  bool replicated() const override { return false; }
  int64_t parameter_bytes() const override;
  int64_t buffer_bytes() const override { return 0; }

 private:
  std::vector<at::Tensor> whole_;
};

// Parameters whole; gradients by ranges next to whole ones in float32, and after the update one
// gather at a time.
StateBytes plan_shard_grad_op(const StateDescription& description);

}  // namespace fastsft
