#include "ops/sgd/sgd.h"
#include "optim/optimizer.h"

namespace fastsft {
namespace {

// torch.optim.SGD without momentum, the default in transformers' Trainer. It has no state.
class Sgd : public Optimizer {
 public:
  explicit Sgd(Strategy& strategy) : strategy_(strategy) {}

  void update(const OptimizerOptions& options, const at::Tensor& scalars) override {
    update_ranges(strategy_, [&](const UpdateRange& range) {
      sgd(range.master, range.copy, range.grad, scalars, options.learning_rate,
          range.decays ? options.weight_decay : 0.0);
    });
  }

 private:
  Strategy& strategy_;
};

StateSpecs nothing(const ParamUnit&, const StateOptions&) { return {}; }

const bool kSgdRegistered =
    OptimizerRegistry::instance().add("sgd", {.make = make_optimizer<Sgd>, .state = nothing});

}  // namespace
}  // namespace fastsft
