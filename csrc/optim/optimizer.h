#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/registry.h"
#include "shard/strategy.h"

namespace fastsft {

// Hyper-parameters of one optimizer step, as the schedule and the flags give them; an optimizer
// reads those that it has.
struct OptimizerOptions {
  double learning_rate = 5e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  // on the decay range of each unit only
  int64_t rounding_seed = 0;  // of the stochastic rounding of bfloat16 moments
};

// Updates the weights of a strategy, which outlives it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates this rank's ranges of all units from their summed gradients, by grad_scale and step of
  // `scalars` (ops/gradient/step_scalars.h). Nothing changes when grad_scale is not finite.
  // Collective.
  virtual void update(const OptimizerOptions& options, const at::Tensor& scalars) = 0;
  virtual int64_t nbytes() const { return 0; }  // of its buffers; state is the strategy's
};

struct OptimizerTag {
  static constexpr const char* kNoun = "optimizer";
};
// What an optimizer's file registers under its name.
struct OptimizerKind {
  std::function<std::unique_ptr<Optimizer>(Strategy&)> make;
  StateLayout state;          // layout of the optimizer state of one unit
  bool narrow_state = false;  // may keep it in bfloat16: optim_dtype
  // Bytes of the buffers that `make` allocates; null: none.
  std::function<int64_t(const std::vector<ParamUnit>&)> buffers = {};
};
using OptimizerRegistry = Registry<OptimizerTag, OptimizerKind>;

// OptimizerKind::make of a class that is made of the strategy alone.
template <typename Kind>
std::unique_ptr<Optimizer> make_optimizer(Strategy& strategy) {
  return std::make_unique<Kind>(strategy);
}

// The kind of `options`. std::invalid_argument for an unknown name, and for an optim_dtype that it
// does not have.
const OptimizerKind& find_optimizer(const StateOptions& options);

// The squared L2 norm of this rank's gradient ranges, added to `out` [1] float64. On strategies
// that shard, the sum over ranks is the whole norm; on replicated ones it is whole already.
void add_local_norm_squared(Strategy& strategy, const at::Tensor& out);

// That of a replicated strategy, with the rounding of torch.nn.utils.clip_grad_norm_: a float32
// norm of each tensor, then the norm of these. On CPUs that of a large tensor is off by up to 1e-3
// (docs/decisions.md).
void add_tensor_norms_squared(Strategy& strategy, const at::Tensor& out);

// Elements of a unit's range that an update treats alike, as views.
struct UpdateRange {
  at::Tensor master;               // UnitState
  std::optional<at::Tensor> copy;  // the compute range next to it
  at::Tensor grad;
  std::vector<at::Tensor> values;  // of the optimizer; whole ones are whole
  int64_t first = 0;               // number of the first element in the whole model
  bool decays = false;
};

// Of elements `part` of the unit, which the state holds.
UpdateRange range_of(Strategy& strategy, size_t unit, const UnitState& state,
                     const ElementRange& part);

// Calls `work` for the ranges of all units with and without weight decay, between begin_update and
// end_update of each; collective.
void update_ranges(Strategy& strategy, const std::function<void(const UpdateRange&)>& work);

}  // namespace fastsft
