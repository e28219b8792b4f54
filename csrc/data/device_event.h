#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace fastsft {

// The stream that this thread gives its work on `device` to; none on the CPU, where work is done
// when a call returns.
std::optional<c10::Stream> current_stream(c10::Device device);
// A second stream, for work that overlaps; none on the CPU.
std::optional<c10::Stream> side_stream(c10::Device device);

// A point in the work given to a device. On the CPU every point has passed when it is recorded, and
// the other methods do nothing.
class DeviceEvent {
 public:
  enum class Timing { kOff, kOn };
  explicit DeviceEvent(c10::Device device, Timing timing = Timing::kOff);

  // After all work that `stream` has now; the current stream when none is given.
  void record(std::optional<c10::Stream> stream = std::nullopt);
  // What `stream` is given from now on waits for the point; the host does not wait.
  void block(std::optional<c10::Stream> stream = std::nullopt) const;
  // The host waits: the only place where it does. The timeline says "synchronize <what>", also
  // where nothing was left to wait for, so that a wait inside a step is seen on every device.
  void synchronize(const char* what) const;
  bool passed() const;
  // Milliseconds from `earlier` to here on the device's clock; both passed, both with timing.
  double milliseconds_since(const DeviceEvent& earlier) const;

 private:
  c10::Device device_;
  std::optional<c10::Event> event_;
};

// event.block() for destructors: on a device that has failed nothing is left to wait for.
void block_quietly(const DeviceEvent& event) noexcept;

}  // namespace fastsft
