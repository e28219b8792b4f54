#include "shard/collective_span.h"

#include <c10/core/StreamGuard.h>

#include <map>
#include <mutex>
#include <utility>

namespace fastsft {
namespace {

// One stream for each lane of a device: the pool of `side_stream` is small and goes round, so a
// new one for each collective would soon be a stream that somebody works on.
c10::Stream stream_of(trace::Lane lane, at::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<trace::Lane, at::DeviceIndex>, c10::Stream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair key(lane, device.index());
  const auto found = streams.find(key);
  return found != streams.end() ? found->second
                                : streams.emplace(key, *side_stream(device)).first->second;
}

}  // namespace

void CollectiveSpan::enqueued(at::Device device, const std::function<void()>& wait) {
  if (span_ == 0 || device.is_cpu()) return;
  // On a stream where nothing else waits: the mark is the end of the collective alone.
  const c10::StreamGuard guard(stream_of(lane_, device));
  wait();
  waited();
}

}  // namespace fastsft
