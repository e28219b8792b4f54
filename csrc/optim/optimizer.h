#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/registry.h"
#include "shard/strategy.h"

namespace fastsft {

// Hyperparameters of one optimizer step, from the schedule and the flags. An optimizer
// ignores the fields that it does not use.
struct OptimizerOptions {
  double learning_rate = 5e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  // applies to each unit's decay range only
  int64_t rounding_seed = 0;  // seed for the stochastic rounding of bfloat16 moments
};

// Updates a strategy's weights. The strategy must outlive the optimizer.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates this rank's ranges of all units from the summed gradients. Reads grad_scale and step
  // from `scalars` (ops/gradient/step_scalars.h); changes nothing if grad_scale is not finite.
  // Collective.
  virtual void update(const OptimizerOptions& options, const at::Tensor& scalars) = 0;
  virtual int64_t nbytes() const { return 0; }  // buffers only: the strategy owns the state
};

struct OptimizerTag {
  static constexpr const char* kNoun = "optimizer";
};
// An optimizer, as its source file registers it under its name.
struct OptimizerKind {
  std::function<std::unique_ptr<Optimizer>(Strategy&)> make;
  StateLayout state;          // layout of the optimizer state of one unit
  bool narrow_state = false;  // true if --optim_dtype may store the state in bfloat16
  // Returns the size [bytes] of the buffers that `make` allocates; null if it allocates none.
  std::function<int64_t(const std::vector<ParamUnit>&)> buffers = {};
};
using OptimizerRegistry = Registry<OptimizerTag, OptimizerKind>;

// Constructs the optimizer class `Kind`; an OptimizerKind::make for classes that need only the
// strategy.
template <typename Kind>
std::unique_ptr<Optimizer> make_optimizer(Strategy& strategy) {
  return std::make_unique<Kind>(strategy);
}

// Returns the registered optimizer that `options` names. Throws std::invalid_argument if the name
// is unknown or if the optimizer does not support optim_dtype.
const OptimizerKind& find_optimizer(const StateOptions& options);

// Adds the squared L2 norm of this rank's gradient ranges to `out` [1] float64. With a sharding
// strategy, the model's norm is the sum over ranks; with a replicated strategy, each rank already
// has the model's norm.
void add_local_norm_squared(Strategy& strategy, const at::Tensor& out);

// Adds the squared gradient norm of a replicated strategy to `out` [1] float64, rounded as in
// torch.nn.utils.clip_grad_norm_: a float32 norm per tensor, then the norm of these norms. On CPUs
// the norm of a large tensor is off by up to 1e-3 (docs/decisions.md).
void add_tensor_norms_squared(Strategy& strategy, const at::Tensor& out);

// A part of this rank's range of a unit that is updated with the same hyperparameters. Tensors are
// views.
struct UpdateRange {
  at::Tensor master;               // part of UnitState::master
  std::optional<at::Tensor> copy;  // part of the compute range that belongs to the master
  at::Tensor grad;
  std::vector<at::Tensor> values;  // optimizer state; averages kept for whole units are not cut
  int64_t first = 0;               // index of the first element in the whole model
  bool decays = false;
};

// Returns views of elements `part` of the unit; this rank must own them.
UpdateRange range_of(Strategy& strategy, size_t unit, const UnitState& state,
                     const ElementRange& part);

// Calls `work` on this rank's range of each unit, once for the elements with weight decay and once
// for those without, between begin_update and end_update. Collective.
void update_ranges(Strategy& strategy, const std::function<void(const UpdateRange&)>& work);

}  // namespace fastsft
