#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shard/communicator.h"
#include "shard/param_unit.h"
#include "shard/unit_buffers.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Where gradients go between a block's backward and the optimizer.
class Gradients {
 public:
  virtual ~Gradients() = default;

  virtual void begin_micro_batch(bool last) = 0;
  // The whole flat gradient of `unit` to write into, until `reduce`.
  virtual UnitGradient& whole(size_t unit) = 0;
  // The unit's gradient of this micro-batch is complete.
  virtual void reduce(size_t unit) = 0;
  // After the last micro-batch: `local` then holds the sum over ranks and micro-batches.
  virtual void finish() = 0;
  // This rank's range, float32.
  virtual at::Tensor local(size_t unit) const = 0;
  // After the update: everything is empty again.
  virtual void clear() = 0;
  virtual int64_t nbytes() const = 0;
};

// Reduce-scattered after every micro-batch and added to the rank's range, one reduction at a time
// behind the next block's backward. `open_units`: how many units are written before their reduction
// begins.
class ShardedGradients : public Gradients {
 public:
  ShardedGradients(const std::vector<ParamUnit>& units, Communicator& communicator,
                   const at::TensorOptions& options, size_t open_units);

  void begin_micro_batch(bool last) override {}
  UnitGradient& whole(size_t unit) override;
  void reduce(size_t unit) override;
  void finish() override { finish_pending(); }
  at::Tensor local(size_t unit) const override { return local_[unit]; }
  void clear() override;
  int64_t nbytes() const override;

 private:
  void finish_pending();

  const std::vector<ParamUnit>& units_;
  Communicator& communicator_;
  UnitBuffers buffers_;
  std::vector<UnitGradient> whole_;
  std::vector<at::Tensor> local_;
  std::vector<bool> filled_;
  at::Tensor reduced_;  // the range of the unit under way
  PendingPtr pending_;
  size_t pending_unit_ = 0;
};

// Whole on every rank over the accumulation group, one all-reduce at its end.
class ReplicatedGradients : public Gradients {
 public:
  ReplicatedGradients(const std::vector<ParamUnit>& units, Communicator& communicator,
                      const at::TensorOptions& options);

  void begin_micro_batch(bool last) override { last_ = last; }
  UnitGradient& whole(size_t unit) override { return whole_[unit]; }
  void reduce(size_t unit) override;
  void finish() override;
  at::Tensor local(size_t unit) const override { return whole_[unit].flat(); }
  void clear() override;
  int64_t nbytes() const override;

 private:
  Communicator& communicator_;
  std::vector<UnitGradient> whole_;
  PendingPtr pending_;
  bool last_ = true;
};

}  // namespace fastsft
