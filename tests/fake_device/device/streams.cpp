// CUDA's calls for streams and events.
#include "state.h"

namespace fake_device {
namespace {

// An early query by the host finds nothing finished; a host that polls goes on in the end.
constexpr int kQueriesUntilRun = 2;

struct EventHandle {
  std::shared_ptr<Event> event;
};

std::shared_ptr<Event>& event_of(cudaEvent_t handle) {
  return reinterpret_cast<EventHandle*>(handle)->event;
}

std::string name_of(const Event& event, uint64_t generation) {
  return "event " + std::to_string(reinterpret_cast<uintptr_t>(&event) % 0x100000) + "." +
         std::to_string(generation);
}

void record(cudaEvent_t handle, cudaStream_t stream) {
  const std::unique_lock lock(state().mutex);
  Operation operation;
  operation.kind = Operation::kRecord;
  operation.event = event_of(handle);
  operation.generation = ++operation.event->recorded;
  operation.event->queries = 0;
  operation.name = name_of(*operation.event, operation.generation);
  append(stream_of(stream), std::move(operation));
}

// The last recording; null if the event was never recorded.
const Recording* last_recording(const Event& event) {
  const auto found = event.recordings.find(event.recorded);
  return found == event.recordings.end() ? nullptr : &found->second;
}

Stream& stream_of(const Recording& recording) {
  return *state().streams[static_cast<size_t>(recording.stream)];
}

}  // namespace
}  // namespace fake_device

using namespace fake_device;

EXPORTED cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  COUNT_CALL();
  const std::unique_lock lock(state().mutex);
  if (!(flags & cudaStreamNonBlocking)) {
    report_wrong_call("a stream that synchronizes with the default stream is not implemented");
  }
  *out = reinterpret_cast<cudaStream_t>(&new_stream(priority));
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaStreamCreate(cudaStream_t* out) {
  return cudaStreamCreateWithPriority(out, 0, 0);
}
EXPORTED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
EXPORTED cudaError_t cudaStreamDestroy(cudaStream_t) {
  COUNT_CALL();
  return returned(cudaSuccess);  // its operations still run
}
EXPORTED cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  COUNT_CALL();
  *priority = stream_of(stream).priority;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  COUNT_CALL();
  if (is_left_out("synchronize")) return returned(cudaSuccess);
  wait_stream(stream);
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaDeviceSynchronize() {
  COUNT_CALL();
  if (is_left_out("synchronize")) return returned(cudaSuccess);
  wait_device();
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaStreamQuery(cudaStream_t handle) {
  COUNT_CALL();
  const std::unique_lock lock(state().mutex);
  Stream& stream = stream_of(handle);
  if (!stream.queue.empty() && ++stream.queries > kQueriesUntilRun) {
    run_for_query(stream, stream.last);
  }
  if (!stream.queue.empty()) return cudaErrorNotReady;
  stream.queries = 0;
  host_joins(stream.clock);
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  COUNT_CALL();
  if (is_left_out("wait")) return returned(cudaSuccess);
  const std::unique_lock lock(state().mutex);
  const std::shared_ptr<Event> event = event_of(handle);
  if (!last_recording(*event)) return returned(cudaSuccess);
  Operation operation;
  operation.kind = Operation::kWait;
  operation.event = event;
  operation.generation = event->recorded;
  operation.name = name_of(*event, event->recorded);
  append(stream_of(stream), std::move(operation));
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  COUNT_CALL();
  enqueue(stream, "host function", {}, [=] {
    function(data);
    return true;
  });
  return returned(cudaSuccess);
}

EXPORTED cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  COUNT_CALL();
  auto event = std::make_shared<Event>();
  event->flags = flags;
  *out = reinterpret_cast<cudaEvent_t>(new EventHandle{std::move(event)});
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
EXPORTED cudaError_t cudaEventDestroy(cudaEvent_t event) {
  COUNT_CALL();
  delete reinterpret_cast<EventHandle*>(event);
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  COUNT_CALL();
  record(event, stream);
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
EXPORTED cudaError_t cudaEventQuery(cudaEvent_t handle) {
  COUNT_CALL();
  const std::unique_lock lock(state().mutex);
  Event& event = *event_of(handle);
  const Recording* recording = last_recording(event);
  if (!recording) return returned(cudaSuccess);
  if (event.completed < event.recorded && ++event.queries > kQueriesUntilRun) {
    run_for_query(stream_of(*recording), recording->serial);
  }
  if (event.completed < event.recorded) return cudaErrorNotReady;
  host_joins(recording->clock);
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  COUNT_CALL();
  if (is_left_out("synchronize")) return returned(cudaSuccess);
  std::unique_lock lock(state().mutex);
  const std::shared_ptr<Event> event = event_of(handle);
  if (const Recording* found = last_recording(*event)) {
    const Recording recording = *found;
    run_until(lock, stream_of(recording), recording.serial);
    host_joins(recording.clock);
  }
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  COUNT_CALL();
  const Event &first = *event_of(begin), &second = *event_of(end);
  if ((first.flags | second.flags) & cudaEventDisableTiming) {
    return returned(cudaErrorInvalidResourceHandle);
  }
  if (first.completed < first.recorded || second.completed < second.recorded) {
    return cudaErrorNotReady;
  }
  const std::chrono::duration<float, std::milli> elapsed = second.completed_at - first.completed_at;
  *milliseconds = elapsed.count();
  return returned(cudaSuccess);
}
