#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "data/device_event.h"
#include "shard/unit_state.h"

namespace fastsft {

// Optimizer state that lives on the host and is copied to the device for a unit's update. Two
// device slots take turns: while one unit is updated, the next unit is copied in and the previous
// unit is copied out, on two side streams. Sharded state is always offloaded; the master only if it
// is not the compute range itself. On the CPU the same copies run one after the other.
class OffloadedStates {
 public:
  // `states` must outlive this object. `with_master`: the masters are offloaded too.
  OffloadedStates(const std::vector<UnitState>& states, at::Device device, bool with_master);
  ~OffloadedStates();
  OffloadedStates(const OffloadedStates&) = delete;
  OffloadedStates& operator=(const OffloadedStates&) = delete;

  // Returns the unit's state on the device for work on the current stream, and starts the copy of
  // the next unit. Call in unit order.
  UnitState begin(size_t unit);
  // Copies the state back to the host, after the work enqueued so far.
  void end(size_t unit);
  // Orders the current stream after all copies: when it completes, the host may read the states.
  void finish();
  int64_t nbytes() const;  // bytes of the slots

 private:
  struct Slot {
    std::vector<at::Tensor> values;
    at::Tensor master;
    DeviceEvent arrived, updated, left;
  };
  // Returns a device tensor with room for the largest `part(state)` of all states.
  template <typename Part>
  at::Tensor room(const Part& part) const;
  Slot& slot_of(size_t unit) { return slots_[unit % slots_.size()]; }
  UnitState on_device(size_t unit);
  void bring(size_t unit);
  void move(const UnitState& to, const UnitState& from, std::optional<c10::Stream> stream) const;

  const std::vector<UnitState>& states_;
  at::Device device_;
  bool with_master_;
  std::optional<c10::Stream> coming_, leaving_;
  std::array<Slot, 2> slots_;
};

}  // namespace fastsft
