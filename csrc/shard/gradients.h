#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "shard/communicator.h"
#include "shard/param_unit.h"
#include "shard/rank_groups.h"
#include "shard/unit_buffers.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Where gradients go between a block's backward and the optimizer.
class Gradients {
 public:
  virtual ~Gradients() = default;

  virtual void begin_micro_batch(bool last) = 0;
  // The gradient of `unit` to write into, until `reduce`.
  virtual UnitGradient& whole(size_t unit) = 0;
  // The unit's gradient of this micro-batch is complete.
  virtual void reduce(size_t unit) = 0;
  // After the last micro-batch: `local` then holds the sum over ranks and micro-batches.
  virtual void finish() = 0;
  // This rank's range, float32 or bfloat16.
  virtual at::Tensor local(size_t unit) const = 0;
  // After the update: everything is empty again.
  virtual void clear() = 0;
  virtual int64_t nbytes() const = 0;

  // Sees what this rank gives to every sum over ranks: a unit's flat gradient before it is reduced,
  // in one piece or two. Empty: nobody looks.
  using Observer = std::function<void(const at::Tensor& own)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 protected:
  void observe(const at::Tensor& own) const {
    if (observer_) observer_(own);
  }

 private:
  Observer observer_;
};

// What a rank keeps of a sum over ranks: its range, or the whole.
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
  void begin_copies(size_t unit, const at::Tensor& sum);
  void finish_copies();
  // The summed float32 values of what is kept of `unit`; of one rank those from `direct_end` on.
  at::Tensor reduced(size_t unit) const;
  // Elements of `unit` that products add to what is kept themselves.
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
  at::Tensor copies_range_;   // the float32 sum under way over the copies, when `local` is narrower
  PendingPtr copies_pending_;
  size_t copies_unit_ = 0;
  bool last_ = true;
};

}  // namespace fastsft
