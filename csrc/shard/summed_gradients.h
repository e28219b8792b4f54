#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shard/gradients.h"

namespace fastsft {

// Whole on every rank over the micro-batches of a step, which add to them, in float32. The last one
// reduces each unit, one at a time during the next block's backward, in place: into the rank's
// range, which is then summed over the copies, or the whole.
class SummedGradients : public Gradients {
 public:
  struct Options {
    Reduction keep;
    at::TensorOptions wide;  // float32, and the device
    bool blocking = false;   // every reduction is waited for at once
  };
  SummedGradients(const std::vector<ParamUnit>& units, const Sharding& ranks,
                  const Options& options);

  void begin_micro_batch(bool last) override { last_ = last; }
  UnitGradient& whole(size_t unit) override { return whole_[unit]; }
  void reduce(size_t unit) override;
  void finish() override;
  at::Tensor local(size_t unit) const override;
  void clear() override;
  int64_t nbytes() const override;

 private:
  void finish_pending();
  void finish_copies();

  const std::vector<ParamUnit>& units_;
  Sharding ranks_;
  Options options_;
  std::vector<UnitGradient> whole_;
  PendingPtr pending_;
  size_t pending_unit_ = 0;
  PendingPtr copies_pending_;
  bool last_ = true;
};

}  // namespace fastsft
