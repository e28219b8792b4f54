#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft::trace {

// Timeline of overlapping work, with one track for each kind.
enum class Track : uint8_t {
  kHost,        // work of the calling thread; "synchronize ..." while it waits for the device
  kCompute,     // blocks, and the ops inside them
  kGather,      // from the start of a collective to where its result may be used
  kReduce,      // the same
  kUpload,      // micro-batches to the device
  kParameters,  // a unit's parameters are whole
  kGradients,   // a unit's gradient is whole
};
const char* track_name(Track track);

struct RecordedSpan {
  Track track = Track::kHost;
  std::string name;
  uint64_t began = 0, ended = 0;  // place in the order of all begins and ends, from 1; 0: not yet
  int64_t begin_ns = 0, end_ns = 0;        // steady clock; a device's work in the device's time
  int64_t begin_mark = -1, end_mark = -1;  // of the clock; -1: host time
};

// Reads the time of a device whose work is only enqueued.
class Clock {
 public:
  virtual ~Clock() = default;
  // Marks the point after all work enqueued so far. Does not wait.
  virtual int64_t mark() = 0;
  // Waits for that point and returns its time, in nanoseconds of the steady clock.
  virtual int64_t nanoseconds(int64_t mark) = 0;
};

// The spans of this process, the newest `capacity` of them. Costs one relaxed load when off.
class Recorder {
 public:
  static Recorder& instance();
  static bool on() { return on_.load(std::memory_order_relaxed); }

  // Starts to record, without the spans of earlier recordings. `clock` (null: host time for all
  // tracks) must live until `stop`.
  void start(size_t capacity, Clock* clock);
  // The finished spans in the order in which they began. Later `end`s are ignored.
  std::vector<RecordedSpan> stop();
  // Number of spans that newer ones pushed out since `start`.
  uint64_t dropped() const { return dropped_; }

  uint64_t begin(Track track, std::string name);  // the span's number, from 1; 0 when off
  void end(uint64_t span);                        // 0 is ignored

 private:
  int64_t mark_of(Track track);

  static inline std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::deque<RecordedSpan> spans_;
  size_t capacity_ = 0;
  uint64_t next_span_ = 1, first_span_ = 1, order_ = 0, dropped_ = 0;
  Clock* clock_ = nullptr;
};

// Hooks of a profiler (NVTX) around the spans of the calling thread. Set before main by a source of
// the CUDA build.
struct Ranges {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
Ranges& outside_ranges();

// Records from here to the end of the scope: "<what> <which>".
class Span {
 public:
  Span(Track track, std::string_view what, std::string_view which = {}) {
    if (Recorder::on() || outside_ranges().push != nullptr) open(track, what, which);
  }
  ~Span() {
    if (opened_) close();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void open(Track track, std::string_view what, std::string_view which);
  void close();

  bool opened_ = false;
  uint64_t span_ = 0;
};

}  // namespace fastsft::trace
