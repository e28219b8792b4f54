#pragma once

#include <vector>

#include "core/trace.h"
#include "data/device_event.h"

namespace fastsft {

// A CUDA device's clock. It reads events with timing and is aligned with the host's clock
// once, at its construction.
class DeviceClock : public trace::Clock {
 public:
  explicit DeviceClock(c10::Device device);
  int64_t mark() override;
  int64_t nanoseconds(int64_t mark) override;

 private:
  c10::Device device_;
  DeviceEvent start_;
  int64_t start_ns_;
  std::vector<DeviceEvent> marks_;
};

}  // namespace fastsft
