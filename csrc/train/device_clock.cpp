#include "train/device_clock.h"

#include <chrono>

namespace fastsft {

DeviceClock::DeviceClock(c10::Device device)
    : device_(device), start_(device, DeviceEvent::Timing::kOn) {
  start_.record();
  start_.synchronize("clock");
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  start_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

int64_t DeviceClock::mark() {
  marks_.emplace_back(device_, DeviceEvent::Timing::kOn).record();
  return static_cast<int64_t>(marks_.size()) - 1;
}

int64_t DeviceClock::nanoseconds(int64_t mark) {
  const DeviceEvent& event = marks_[static_cast<size_t>(mark)];
  event.synchronize("clock");
  return start_ns_ + static_cast<int64_t>(event.milliseconds_since(start_) * 1e6);
}

}  // namespace fastsft
