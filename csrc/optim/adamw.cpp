#include "ops/adamw/adamw.h"
#include "optim/optimizer.h"

namespace fastsft {
namespace {

// torch.optim.AdamW (docs/spec/trainer_semantics.md, section 10.2).
class AdamW : public Optimizer {
 public:
  explicit AdamW(Strategy& strategy) : strategy_(strategy) {}

  void update(const OptimizerOptions& options, const at::Tensor& scalars) override {
    update_ranges(strategy_, [&](const UpdateRange& range) {
      adamw(range.master, range.copy, range.grad, range.values[0], range.values[1], scalars,
            options.learning_rate, options.beta1, options.beta2, options.eps,
            range.decays ? options.weight_decay : 0.0, options.rounding_seed, range.first);
    });
  }

 private:
  Strategy& strategy_;
};

StateSpecs moments(const ParamUnit&, const StateOptions& options) {
  return {StateSpec::of_all_elements("exp_avg", options.optim_dtype),
          StateSpec::of_all_elements("exp_avg_sq", options.optim_dtype)};
}

const bool kAdamWRegistered = OptimizerRegistry::instance().add(
    "adamw", {.make = make_optimizer<AdamW>, .state = moments, .narrow_state = true});

}  // namespace
}  // namespace fastsft
