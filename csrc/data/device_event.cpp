#include "data/device_event.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/trace.h"

namespace fastsft {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return guard_of(device).getStream(device);
}

std::optional<c10::Stream> side_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return guard_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

DeviceEvent::DeviceEvent(c10::Device device, Timing timing) : device_(device) {
  if (device.is_cpu()) return;
  event_.emplace(device.type(), timing == Timing::kOn ? c10::EventFlag::BACKEND_DEFAULT
                                                      : c10::EventFlag::PYTORCH_DEFAULT);
}

void DeviceEvent::record(std::optional<c10::Stream> stream) {
  if (event_) event_->record(stream ? *stream : *current_stream(device_));
}

void DeviceEvent::block(std::optional<c10::Stream> stream) const {
  if (event_) event_->block(stream ? *stream : *current_stream(device_));
}

void DeviceEvent::synchronize(const char* what) const {
  const trace::Span span(trace::Track::kHost, "synchronize", what);
  if (event_) event_->synchronize();
}

void join_quietly(const std::optional<c10::Stream>& stream) noexcept {
  if (!stream) return;
  try {
    DeviceEvent all(stream->device());
    all.record(stream);
    all.block();
  } catch (const std::exception&) {
    return;
  }
}

bool DeviceEvent::passed() const { return !event_ || event_->query(); }

double DeviceEvent::milliseconds_since(const DeviceEvent& earlier) const {
  return event_ ? earlier.event_->elapsedTime(*event_) : 0.0;
}

}  // namespace fastsft
