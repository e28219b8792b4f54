#include "shard/staged_states.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

namespace fastsft {

StagedStates::StagedStates(const std::vector<UnitState>& states, at::Device device,
                           bool with_master)
    : states_(states),
      device_(device),
      with_master_(with_master),
      coming_(side_stream(device)),
      leaving_(side_stream(device)),
      slots_{Slot{{}, {}, DeviceEvent(device), DeviceEvent(device), DeviceEvent(device)},
             Slot{{}, {}, DeviceEvent(device), DeviceEvent(device), DeviceEvent(device)}} {
  int64_t largest = 0;
  for (const auto& state : states) largest = std::max(largest, state.end - state.begin);
  const auto like = [&](const at::Tensor& held) {
    return at::TensorOptions().dtype(held.dtype()).device(device);
  };
  for (auto& slot : slots_) {
    slot.moments = at::empty({2 * largest}, like(states.front().exp_avg));
    slot.master = at::empty({with_master ? largest : 0}, like(states.front().master));
    slot.left.record();
  }
}

// The slots are given back in the order of the current stream, which a copy may not have reached.
StagedStates::~StagedStates() {
  for (const auto& slot : slots_) {
    block_quietly(slot.arrived);
    block_quietly(slot.left);
  }
}

UnitState StagedStates::on_device(size_t unit) {
  UnitState state = states_[unit];
  const int64_t size = state.end - state.begin;
  const Slot& slot = slot_of(unit);
  state.exp_avg = slot.moments.narrow(0, 0, size);
  state.exp_avg_sq = slot.moments.narrow(0, size, size);
  if (with_master_) state.master = slot.master.narrow(0, 0, size);
  return state;
}

void StagedStates::move(const UnitState& to, const UnitState& from,
                        std::optional<c10::Stream> stream) const {
  const c10::OptionalStreamGuard guard(stream);
  to.exp_avg.copy_(from.exp_avg, /*non_blocking=*/true);
  to.exp_avg_sq.copy_(from.exp_avg_sq, /*non_blocking=*/true);
  if (with_master_) to.master.copy_(from.master, /*non_blocking=*/true);
}

// A unit keeps its slot, so once the slot is free, what the last step wrote is on the host.
void StagedStates::bring(size_t unit) {
  Slot& slot = slot_of(unit);
  slot.left.block(coming_);
  move(on_device(unit), states_[unit], coming_);
  slot.arrived.record(coming_);
}

UnitState StagedStates::begin(size_t unit) {
  if (unit == 0) bring(0);
  if (unit + 1 < states_.size()) bring(unit + 1);
  slot_of(unit).arrived.block();
  return on_device(unit);
}

void StagedStates::end(size_t unit) {
  Slot& slot = slot_of(unit);
  slot.updated.record();
  slot.updated.block(leaving_);
  move(states_[unit], on_device(unit), leaving_);
  slot.left.record(leaving_);
}

void StagedStates::finish() {
  for (auto& slot : slots_) slot.left.block();
}

int64_t StagedStates::nbytes() const {
  int64_t sum = 0;
  for (const auto& slot : slots_)
    sum += static_cast<int64_t>(slot.moments.nbytes() + slot.master.nbytes());
  return sum;
}

}  // namespace fastsft
