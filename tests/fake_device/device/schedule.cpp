// Which queued operations run, and when.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "state.h"

namespace fake_device {
namespace {

using Clock = std::chrono::steady_clock;

// More than any chain of streams that wait for each other.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxRecordings = 4096;

const Operation* running = nullptr;

bool is_satisfied(const Operation& wait) { return wait.event->completed >= wait.generation; }

// Executes the work of a stream's head; false if it must be called again.
bool execute(Operation& operation) {
  State& s = state();
  try {
    running = &operation;
    if (!operation.checked) {
      check_for_races(operation, operation.ranges);
      count_operation(operation, operation.ranges);
      operation.checked = true;
    }
    if (s.fail_at && s.executed + 1 == s.fail_at) {
      fail(operation.name + " fails, as FAKE_DEVICE_FAIL_AT says");
    }
    // After a failure a device executes nothing.
    const bool done = s.sticky != cudaSuccess || operation.work();
    running = nullptr;
    return done;
  } catch (const std::exception& error) {
    running = nullptr;
    fail(operation.name + ": " + error.what());
    return true;
  }
}

// Runs the head of a stream; false if it cannot run now. `done`: where the operation goes then,
// for a thread that may not free what it holds.
bool run_head(Stream& stream, std::vector<Operation>* done = nullptr) {
  State& s = state();
  if (stream.queue.empty() || stream.running) return false;
  Operation& head = stream.queue.front();
  if (head.kind == Operation::kWait && !is_satisfied(head)) return false;
  if (head.kind == Operation::kRecord) {
    head.event->completed = std::max(head.event->completed, head.generation);
    head.event->completed_at = Clock::now();
  }
  if (head.kind == Operation::kWork) {
    stream.running = true;
    const bool is_done = execute(head);
    stream.running = false;
    if (!is_done) return false;
    ++s.executed;
  }
  if (done) done->push_back(std::move(head));
  stream.queue.pop_front();
  s.progress.fetch_add(1);
  return true;
}

// Runs the operations of `stream` up to `serial` and the operations of other streams that they wait
// for. Returns whether any ran.
bool run_needed(Stream& stream, uint64_t serial, int depth = 0) {
  bool any = false;
  while (!stream.queue.empty() && stream.queue.front().serial <= serial) {
    Operation& head = stream.queue.front();
    if (head.kind == Operation::kWait && !is_satisfied(head)) {
      if (depth > kMaxDepth) return any;
      const Recording& awaited = head.event->recordings.at(head.generation);
      Stream& other = *state().streams[static_cast<size_t>(awaited.stream)];
      any |= run_needed(other, awaited.serial, depth + 1);
      if (!is_satisfied(head)) return any;
    } else {
      if (!run_head(stream)) return any;
      any = true;
    }
  }
  return any;
}

bool run_random_head(std::vector<Operation>* done = nullptr) {
  State& s = state();
  std::vector<Stream*> waiting;
  for (auto& stream : s.streams) {
    if (!stream->queue.empty()) waiting.push_back(stream.get());
  }
  std::shuffle(waiting.begin(), waiting.end(), s.random);
  return std::ranges::any_of(waiting, [&](Stream* stream) { return run_head(*stream, done); });
}

// Runs the eager streams, or all, until none can go on.
void run_streams(bool all) {
  State& s = state();
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 0; i < s.streams.size(); ++i) {  // by index: work may add streams
      Stream& stream = *s.streams[i];
      if (!all && !stream.eager) continue;
      while (run_head(stream)) any = true;
    }
  }
}

void follow_schedule() {
  State& s = state();
  switch (s.schedule) {
    case Schedule::kEager:
      return run_streams(true);
    case Schedule::kMixed:
      return run_streams(false);
    case Schedule::kRandom:
      for (auto count = s.random() % 4; count > 0; --count) run_random_head();
      return;
    case Schedule::kLazy:
      return;
  }
}

void print_queues() {
  for (const auto& stream : state().streams) {
    if (stream->queue.empty()) continue;
    std::fprintf(stderr, "stream %d, %zu operations:", stream->id, stream->queue.size());
    for (size_t i = 0; i < std::min<size_t>(6, stream->queue.size()); ++i) {
      const Operation& each = stream->queue[i];
      const char* kind = each.kind == Operation::kWait     ? "wait for "
                         : each.kind == Operation::kRecord ? "record "
                                                           : "";
      std::fprintf(stderr, " [%lu %s%s]", each.serial, kind, each.name.c_str());
    }
    std::fprintf(stderr, "\n");
  }
}

}  // namespace

Stream& stream_of(cudaStream_t handle) {
  // 0, 1 and 2 are the default stream, cudaStreamLegacy and cudaStreamPerThread.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return *state().streams[0];
  return *reinterpret_cast<Stream*>(handle);
}

Stream& new_stream(int priority) {
  State& s = state();
  s.streams.push_back(std::make_unique<Stream>());
  Stream& stream = *s.streams.back();
  stream.id = static_cast<int>(s.streams.size()) - 1;
  stream.priority = priority;
  stream.eager = s.random() % 2 == 0;
  return stream;
}

void join(VectorClock& clock, const VectorClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void host_joins(const VectorClock& clock) { join(state().host, clock); }

void append(Stream& stream, Operation operation) {
  State& s = state();
  const auto own = static_cast<size_t>(stream.id);
  operation.serial = stream.last = ++s.serials;
  operation.stream = stream.id;
  // The host's order, then the awaited event's, then one step of the stream itself.
  join(stream.clock, s.host);
  if (operation.kind == Operation::kWait) {
    join(stream.clock, operation.event->recordings.at(operation.generation).clock);
  }
  if (stream.clock.size() <= own) stream.clock.resize(own + 1);
  ++stream.clock[own];
  operation.clock = stream.clock;
  count_overlap(operation);
  if (operation.kind == Operation::kRecord) {
    auto& recordings = operation.event->recordings;
    recordings[operation.generation] = {stream.id, operation.serial, stream.clock};
    while (recordings.size() > kMaxRecordings) recordings.erase(recordings.begin());
  }
  stream.queue.push_back(std::move(operation));
  follow_schedule();
}

void run_until(std::unique_lock<std::recursive_mutex>& lock, Stream& stream, uint64_t serial) {
  State& s = state();
  auto idle_since = Clock::now();
  while (!stream.queue.empty() && stream.queue.front().serial <= serial) {
    bool any = s.schedule == Schedule::kRandom && run_random_head();
    if (!any) any = run_needed(stream, serial);
    if (!any && s.schedule != Schedule::kLazy) any = run_random_head();
    if (any) {
      idle_since = Clock::now();
      continue;
    }
    const auto patience = std::chrono::seconds(s.patience_seconds);
    if (!s.in_background || Clock::now() - idle_since > patience) {
      std::fprintf(stderr, "fake device: stream %d never reaches operation %lu\n", stream.id,
                   serial);
      print_queues();
      std::abort();
    }
    lock.unlock();  // other threads may enqueue what the peers wait for
    ::usleep(200);
    lock.lock();
  }
}

void run_for_query(Stream& stream, uint64_t serial) { run_needed(stream, serial); }

void enqueue(cudaStream_t handle, std::string name, Ranges ranges, Work work, double flops) {
  const std::unique_lock lock(state().mutex);
  Operation operation;
  operation.name = std::move(name);
  operation.ranges = std::move(ranges);
  operation.work = std::move(work);
  operation.flops = flops;
  append(stream_of(handle), std::move(operation));
}

void wait_stream(cudaStream_t handle) {
  std::unique_lock lock(state().mutex);
  Stream& stream = stream_of(handle);
  const VectorClock clock = stream.clock;
  run_until(lock, stream, stream.last);
  host_joins(clock);
}

void wait_device() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  std::vector<uint64_t> last;
  for (const auto& stream : s.streams) last.push_back(stream->last);
  for (size_t i = 0; i < last.size(); ++i) {
    const VectorClock clock = s.streams[i]->clock;
    run_until(lock, *s.streams[i], last[i]);
    host_joins(clock);
  }
}

void touched(const Ranges& ranges) {
  if (!running) return;
  check_for_races(*running, ranges);
  count_operation(*running, ranges);
}

bool needs_touched_bytes() { return state().check_races || state().counts; }

void run_in_background() {
  State& s = state();
  const std::unique_lock lock(s.mutex);
  if (s.in_background) return;
  s.in_background = true;
  std::thread([&s] {
    uint64_t seen = 0;
    for (;;) {
      ::usleep(20000);
      const uint64_t now = s.progress.load();
      if (now == seen) {  // the host is busy with something else
        // Freed without the mutex: tensors of Python take the interpreter's lock, and a thread that
        // holds that lock may wait for the mutex.
        std::vector<Operation> done;
        const std::unique_lock inner(s.mutex);
        run_random_head(&done);
      }
      seen = s.progress.load();
    }
  }).detach();
}

}  // namespace fake_device
