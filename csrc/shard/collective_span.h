#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>

#include "core/trace.h"
#include "data/device_event.h"

namespace fastsft {

// The span of a collective in the recorded timeline. On the CPU it ends when somebody has waited
// for the result; on a device, where a wait only orders streams, when the device is done.
class CollectiveSpan {
 public:
  CollectiveSpan(trace::Lane lane, const std::string& name) : lane_(lane) {
    if (trace::Recorder::on()) span_ = trace::Recorder::instance().begin(lane, name);
  }
  // The collective is enqueued; `wait` orders the current stream after it.
  void enqueued(at::Device device, const std::function<void()>& wait);
  void waited() { trace::Recorder::instance().end(std::exchange(span_, 0)); }

 private:
  trace::Lane lane_;
  uint64_t span_ = 0;
};

}  // namespace fastsft
