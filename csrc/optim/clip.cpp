#include "optim/clip.h"

#include "ops/norm_squared/norm_squared.h"

namespace fastsft {

void add_local_norm_squared(Strategy& strategy, const at::Tensor& out) {
  for (size_t unit = 0; unit < strategy.states().size(); ++unit) {
    norm_squared(strategy.gradients().local(unit), out);
  }
}

}  // namespace fastsft
