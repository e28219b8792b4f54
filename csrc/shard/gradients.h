#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "shard/communicator.h"
#include "shard/param_unit.h"
#include "shard/unit_buffers.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Gradients between a block's backward and the optimizer.
class Gradients {
 public:
  virtual ~Gradients() = default;

  virtual void begin_micro_batch(bool last) = 0;
  // Returns the gradient of `unit` to write into, until `reduce`.
  virtual UnitGradient& whole(size_t unit) = 0;
  // Call when the unit's gradient of this micro-batch is complete.
  virtual void reduce(size_t unit) = 0;
  // Call after the last micro-batch. Then `local` holds the sum over ranks and micro-batches.
  virtual void finish() = 0;
  // This rank's part, float32 or bfloat16.
  virtual at::Tensor local(size_t unit) const = 0;
  // Empties all gradients; call after the update.
  virtual void clear() = 0;
  virtual int64_t nbytes() const = 0;

  // Sees every flat gradient of this rank before it is reduced, in one piece or two. May be empty.
  using Observer = std::function<void(const at::Tensor& own)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 protected:
  void observe(const at::Tensor& own) const {
    if (observer_) observer_(own);
  }

 private:
  Observer observer_;
};

// Whether a rank keeps its range of a sum over ranks, or all of it.
enum class Reduction { kRange, kWhole };

// Reduced after every micro-batch and added to what the rank keeps, one reduction at a time during
// the next block's backward. Sums over ranks and the addition are float32; a bfloat16 sum is
// rounded once a micro-batch. With several copies, the sum over the micro-batches is reduced over
// them, after the last micro-batch's backward.
// One rank has nothing to reduce. With `in_products` products of matrices add to its sum
// themselves, and no float32 gradient of the linears is ever whole.
class ReducedGradients : public Gradients {
 public:
  struct Options {
    Reduction keep;
    at::TensorOptions accumulated;  // float32 or bfloat16, and the device
    bool in_products = false;  // of one rank that keeps the whole, as narrow as what is computed
    size_t open_units;         // units that are written before their reduction begins
    bool blocking = false;     // every reduction is waited for at once
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
  // Returns the summed float32 values that are kept of `unit`; with one rank those from
  // `direct_end` on.
  at::Tensor reduced(size_t unit) const;
  // Number of elements of `unit` to whose sum GEMMs add directly.
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
  at::Tensor range_;  // the reduced range of the unit under way
  PendingPtr pending_;
  size_t pending_unit_ = 0;
  bool pending_last_ = true;  // the reduction under way belongs to the last micro-batch
  at::Tensor replica_sum_;    // the float32 sum under way over the copies, when `local` is narrower
  PendingPtr replica_pending_;
  size_t replica_unit_ = 0;
  bool last_ = true;
};

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
  void finish_replicas();

  const std::vector<ParamUnit>& units_;
  Sharding ranks_;
  Options options_;
  std::vector<UnitGradient> whole_;
  PendingPtr pending_;
  size_t pending_unit_ = 0;
  PendingPtr replica_pending_;
  bool last_ = true;
};

}  // namespace fastsft
