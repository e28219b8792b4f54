#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace fastsft {

// Returns this thread's current stream on `device`; nullopt on the CPU, which has no streams.
std::optional<c10::Stream> current_stream(c10::Device device);
// Returns a second stream for overlapping work; nullopt on the CPU.
std::optional<c10::Stream> side_stream(c10::Device device);

// A point in the work enqueued on a device. On the CPU an event has always passed, and the other
// methods do nothing.
class DeviceEvent {
 public:
  enum class Timing { kOff, kOn };
  explicit DeviceEvent(c10::Device device, Timing timing = Timing::kOff);

  // Records the event after all work enqueued on `stream`, by default the current stream.
  void record(std::optional<c10::Stream> stream = std::nullopt);
  // Makes later work on `stream` wait for the event. The host does not wait.
  void block(std::optional<c10::Stream> stream = std::nullopt) const;
  // Makes the host wait for the event; no other function does. The timeline shows "synchronize
  // <what>" on every device, even if nothing is left to wait for, so that tests on a CPU find a
  // wait inside a step.
  void synchronize(const char* what) const;
  bool passed() const;
  // Returns the milliseconds from `earlier` to this event on the device's clock. Both events must
  // have passed and have timing on.
  double milliseconds_since(const DeviceEvent& earlier) const;

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;
};

// Makes later work on the current stream wait for all work enqueued on `stream`, before memory that
// `stream` uses is freed: freeing is ordered on the current stream only. Ignores errors, for use in
// destructors: after a device failure there is nothing left to wait for.
void join_quietly(const std::optional<c10::Stream>& stream) noexcept;

}  // namespace fastsft
