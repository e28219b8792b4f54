#include "optim/optimizer.h"

#include "core/error.h"
#include "ops/norm_squared/norm_squared.h"

namespace fastsft {

const OptimizerKind& find_optimizer(const StateOptions& options) {
  const OptimizerKind& kind = OptimizerRegistry::instance().get(options.optimizer);
  require(kind.narrow_state || options.optim_dtype == c10::ScalarType::Float,
          "optim_dtype is bfloat16, which the optimizer \"", options.optimizer,
          "\" does not have; leave --optim_dtype out, or use --optim adamw_torch");
  return kind;
}

void add_local_norm_squared(Strategy& strategy, const at::Tensor& out) {
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    norm_squared(strategy.gradients().local(unit), out);
  }
}

}  // namespace fastsft
