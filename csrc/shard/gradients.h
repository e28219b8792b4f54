#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shard/communicator.h"
#include "shard/param_unit.h"
#include "shard/unit_buffers.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Gradients of all units, from a block's backward to the optimizer.
class Gradients {
 public:
  virtual ~Gradients() = default;

  virtual void begin_micro_batch(bool last) = 0;
  // Returns the gradient of `unit`, which backward may write until `reduce`.
  virtual UnitGradient& whole(size_t unit) = 0;
  // Starts the reduction over ranks. Call when the unit's gradient of this micro-batch is complete.
  virtual void reduce(size_t unit) = 0;
  // Waits for the reductions. Call after the last micro-batch; then `local` is the sum over ranks
  // and micro-batches.
  virtual void finish() = 0;
  // Returns this rank's part of the summed gradient, in float32 or bfloat16.
  virtual at::Tensor local(size_t unit) const = 0;
  // Empties all gradients. Call after the update.
  virtual void clear() = 0;
  virtual int64_t nbytes() const = 0;

  // A function that receives every flat gradient of this rank before its reduction, in one or two
  // pieces. May be empty.
  using Observer = std::function<void(const at::Tensor& own)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 protected:
  void observe(const at::Tensor& own) const {
    if (observer_) observer_(own);
  }

 private:
  Observer observer_;
};

// The part that a rank keeps when a gradient is summed over ranks: its range (kRange) or everything
// (kWhole).
enum class Reduction { kRange, kWhole };

// Gradients that are reduced after every micro-batch and then added to the kept sum. One reduction
// at a time runs during the next block's backward. Sums over ranks and additions use float32; a
// bfloat16 sum is rounded once per micro-batch. With several replicas, the sum over micro-batches
// is also reduced over the replicas, after the last micro-batch's backward.
// A single rank has nothing to reduce. With `in_products`, its GEMMs add to the sum directly, and
// no float32 gradient of the linears is ever whole.
class ReducedGradients : public Gradients {
 public:
  struct Options {
    Reduction keep;
    at::TensorOptions accumulated;  // float32 or bfloat16, with the device
    bool in_products = false;       // GEMMs add to the sum; needs one rank, kWhole, compute dtype
    size_t open_units;              // units that are written before their reduction begins
    bool blocking = false;          // wait for every reduction at once
  };
  ReducedGradients(const std::vector<ParamUnit>& units, const Sharding& ranks,
                   const Options& options);

  void begin_micro_batch(bool last) override { last_ = last; }
  UnitGradient& whole(size_t unit) override;
  void reduce(size_t unit) override;
  void finish() override;
  at::Tensor local(size_t unit) const override { return local_[unit]; }
  void clear() override;
  int64_t nbytes() const override;

 private:
  void finish_pending();
  void begin_replicas(size_t unit, const at::Tensor& sum);
  void finish_replicas();
  // Returns the float32 sum of `unit` that this rank keeps; on a single rank, only the elements
  // from `direct_end` on.
  at::Tensor reduced(size_t unit) const;
  // Returns the end of the unit's linears, whose gradients GEMMs add to the sum directly; 0 without
  // such GEMMs.
  int64_t direct_end(size_t unit) const { return in_products_ ? units_[unit].linear_end() : 0; }
  std::vector<int64_t> buffer_sizes() const;

  const std::vector<ParamUnit>& units_;
  Sharding ranks_;
  Reduction keep_;
  bool blocking_;
  bool in_products_;
  UnitBuffers buffers_;
  std::vector<UnitGradient> whole_;
  std::vector<at::Tensor> local_;
  std::vector<bool> filled_;
  at::Tensor range_;  // the reduced range of the pending unit
  PendingPtr pending_;
  size_t pending_unit_ = 0;
  bool pending_last_ = true;  // the pending reduction is for the last micro-batch
  at::Tensor replica_sum_;    // pending sum over replicas, if `local_` is not float32
  PendingPtr replica_pending_;
  size_t replica_unit_ = 0;
  bool last_ = true;
};

// Float32 gradients that are whole on every rank during a step; each micro-batch adds to them. In
// the last micro-batch each unit is reduced in place, one unit at a time during the next block's
// backward: the whole unit, or only this rank's range, which is then summed over the replicas.
class SummedGradients : public Gradients {
 public:
  struct Options {
    Reduction keep;
    at::TensorOptions wide;  // float32, with the device
    bool blocking = false;   // wait for every reduction at once
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
  void finish_replicas();

  const std::vector<ParamUnit>& units_;
  Sharding ranks_;
  Options options_;
  std::vector<UnitGradient> whole_;
  std::vector<std::pair<size_t, PendingPtr>> pending_;  // units under reduction
  PendingPtr replica_pending_;
  bool last_ = true;
};

}  // namespace fastsft
