#include "optim/optimizer.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "core/error.h"
#include "ops/gradient/gradient.h"

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

void add_tensor_norms_squared(Strategy& strategy, const at::Tensor& out) {
  FASTSFT_ASSERT(strategy.replicated(), "norms of tensors need whole gradients");
  std::vector<at::Tensor> norms;
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    const at::Tensor gradient = strategy.gradients().local(unit);
    for (const auto& slot : strategy.states()[unit].unit->slots()) {
      const at::Tensor one = gradient.narrow(0, slot.offset, slot.numel());
      norms.push_back(at::linalg_vector_norm(one, 2, std::nullopt, false, at::kFloat));
    }
  }
  if (norms.empty()) return;
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms)).to(at::kDouble);
  out.add_(total.square());
}

}  // namespace fastsft
