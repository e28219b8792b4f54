#include "checkpoint/all_or_none.h"

#include <ATen/ops/full.h>

#include "core/error.h"
#include "core/rank_status.h"

namespace fastsft {

void AllOrNone::finish(Communicator& communicator, at::Device device,
                       const std::string& what) const {
  if (communicator.world_size() > 1) {
    const at::Tensor failures =
        at::full({1}, failure_ ? 1.0 : 0.0, at::TensorOptions().device(device).dtype(at::kFloat));
    communicator.all_reduce_sum(failures, "outcome of " + what)->wait();
    const auto count = static_cast<int>(failures.item<float>());
    if (count > 0 && !failure_) {
      throw PeerFailedError(concat(what, ": ", count, " of ", communicator.world_size(),
                                   " ranks failed; their own messages say why"));
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace fastsft
