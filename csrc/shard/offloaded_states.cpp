#include "shard/offloaded_states.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

namespace fastsft {

OffloadedStates::OffloadedStates(const std::vector<UnitState>& states, at::Device device,
                                 bool with_master)
    : states_(states),
      device_(device),
      with_master_(with_master),
      coming_(side_stream(device)),
      leaving_(side_stream(device)),
      slots_{Slot{{}, {}, DeviceEvent(device), DeviceEvent(device), DeviceEvent(device)},
             Slot{{}, {}, DeviceEvent(device), DeviceEvent(device), DeviceEvent(device)}} {
  const UnitState& first = states.front();
  for (auto& slot : slots_) {
    for (size_t i = 0; i < first.values.size(); ++i) {
      slot.values.push_back(first.kept()[i].by_ranges()
                                ? room([i](const UnitState& state) { return state.values[i]; })
                                : at::Tensor());
    }
    if (with_master) slot.master = room([](const UnitState& state) { return state.master; });
    slot.left.record();
  }
}

template <typename Part>
at::Tensor OffloadedStates::room(const Part& part) const {
  int64_t largest = 0;
  for (const auto& state : states_) largest = std::max(largest, part(state).numel());
  return at::empty({largest}, at::TensorOptions().dtype(part(states_[0]).dtype()).device(device_));
}

// An update that ended early leaves copies under way.
OffloadedStates::~OffloadedStates() {
  join_quietly(coming_);
  join_quietly(leaving_);
}

UnitState OffloadedStates::on_device(size_t unit) {
  UnitState state = states_[unit];
  const Slot& slot = slot_of(unit);
  for (size_t i = 0; i < state.values.size(); ++i) {
    if (slot.values[i].defined()) {
      state.values[i] = slot.values[i].narrow(0, 0, state.values[i].numel());
    }
  }
  if (with_master_) state.master = slot.master.narrow(0, 0, state.end - state.begin);
  return state;
}

void OffloadedStates::move(const UnitState& to, const UnitState& from,
                           std::optional<c10::Stream> stream) const {
  const c10::OptionalStreamGuard guard(stream);
  for (size_t i = 0; i < to.values.size(); ++i) {
    if (to.kept()[i].by_ranges()) to.values[i].copy_(from.values[i], /*non_blocking=*/true);
  }
  if (with_master_) to.master.copy_(from.master, /*non_blocking=*/true);
}

// A unit always uses the same slot. Once the slot is free, the last step's values are on the host.
void OffloadedStates::bring(size_t unit) {
  Slot& slot = slot_of(unit);
  slot.left.block(coming_);
  move(on_device(unit), states_[unit], coming_);
  slot.arrived.record(coming_);
}

UnitState OffloadedStates::begin(size_t unit) {
  if (unit == 0) bring(0);
  if (unit + 1 < states_.size()) bring(unit + 1);
  slot_of(unit).arrived.block();
  return on_device(unit);
}

void OffloadedStates::end(size_t unit) {
  Slot& slot = slot_of(unit);
  slot.updated.record();
  slot.updated.block(leaving_);
  move(states_[unit], on_device(unit), leaving_);
  slot.left.record(leaving_);
}

// The copies to the host run one after the other, so the last unit's copy is the last.
void OffloadedStates::finish() { slot_of(states_.size() - 1).left.block(); }

int64_t OffloadedStates::nbytes() const {
  int64_t sum = 0;
  for (const auto& slot : slots_) {
    for (const auto& value : slot.values) {
      if (value.defined()) sum += static_cast<int64_t>(value.nbytes());
    }
    if (slot.master.defined()) sum += static_cast<int64_t>(slot.master.nbytes());
  }
  return sum;
}

}  // namespace fastsft
