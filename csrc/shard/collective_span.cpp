#include "shard/collective_span.h"

#include <c10/core/StreamGuard.h>

namespace fastsft {

void CollectiveSpan::enqueued(at::Device device, const std::function<void()>& wait) {
  if (span_ == 0 || device.is_cpu()) return;
  // On a stream where nothing else waits: the mark is the end of the collective alone.
  const c10::StreamGuard guard(*side_stream(device));
  wait();
  waited();
}

}  // namespace fastsft
