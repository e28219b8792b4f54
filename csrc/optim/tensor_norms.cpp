#include "optim/tensor_norms.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "core/error.h"

namespace fastsft {

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
