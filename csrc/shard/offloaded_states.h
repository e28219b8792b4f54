#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "data/device_event.h"
#include "shard/unit_state.h"

namespace fastsft {

// Optimizer state that lives on the host and comes to the device unit by unit around its update,
// through two slots: while one unit is computed, the next one arrives and the one before leaves,
// each on a stream of its own. What is held by ranges always; the master where it is not the
// compute range itself. On the CPU the same copies are made, one after the other.
class OffloadedStates {
 public:
  // `states` outlives this object. A master on `device` stays where it is.
  OffloadedStates(const std::vector<UnitState>& states, at::Device device, bool with_master);
  ~OffloadedStates();
  OffloadedStates(const OffloadedStates&) = delete;
  OffloadedStates& operator=(const OffloadedStates&) = delete;

  // Returns the unit's state on the device, ready for work enqueued on the current stream, and
  // starts prefetching the next unit. Call in unit order.
  UnitState begin(size_t unit);
  // Copies the state back to the host after the work enqueued so far.
  void end(size_t unit);
  // After the work now enqueued on the current stream completes, the host may read the states.
  void finish();
  int64_t nbytes() const;  // of the slots

 private:
  struct Slot {
    std::vector<at::Tensor> values;
    at::Tensor master;
    DeviceEvent arrived, updated, left;
  };
  // A tensor of the device for the largest of what `part(state)` is.
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
