#include "checkpoint/state_staging.h"

#include "checkpoint/host_copy.h"
#include "data/device_event.h"
#include "shard/master_weights.h"

namespace fastsft {
namespace {

void copy_values(at::Tensor& to, const at::Tensor& from) {
  const bool fits =
      to.defined() && to.numel() == from.numel() && to.scalar_type() == from.scalar_type();
  if (!fits) to = host_buffer(from.numel(), from.device(), from.scalar_type());
  to.copy_(from, /*non_blocking=*/true);
}

// Of the first tensor that is not in host memory, where that is one.
at::Device device_of(const StatePart& part) {
  for (const auto& state : part.states) {
    std::vector<at::Tensor> tensors = state.values;
    tensors.insert(tensors.end(), {state.master, state.high});
    for (const auto& tensor : tensors) {
      if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    }
  }
  return at::kCPU;
}

}  // namespace

void StateStaging::copy(const StatePart& live) {
  part_.rank = live.rank;
  part_.world_size = live.world_size;
  part_.states.resize(live.states.size());
  for (size_t i = 0; i < live.states.size(); ++i) {
    const UnitState& from = live.states[i];
    UnitState& to = part_.states[i];
    to.unit = from.unit;
    to.begin = from.begin;
    to.end = from.end;
    copy_values(to.master, read_master(from));
    to.specs = from.specs;
    to.values.resize(from.values.size());
    for (size_t k = 0; k < from.values.size(); ++k) copy_values(to.values[k], from.values[k]);
  }
  DeviceEvent copied(device_of(live));
  copied.record();
  copied.synchronize("staging of a checkpoint");
}

int64_t staging_bytes(const StatePart& live) {
  const at::Device device = device_of(live);
  int64_t sum = 0;
  for (const auto& state : live.states) {
    sum += host_buffer_bytes(4 * state.master.numel(), device);
    for (const auto& value : state.values) {
      sum += host_buffer_bytes(static_cast<int64_t>(value.nbytes()), device);
    }
  }
  return sum;
}

}  // namespace fastsft
