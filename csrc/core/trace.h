#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft::trace {

// The timeline's tracks: one per kind of work that may overlap others.
enum class Track : uint8_t {
  kHost,        // the calling thread; "synchronize ..." while it waits for the device
  kCompute,     // blocks, and the ops inside them
  kGather,      // all-gathers, from their start until the result may be used
  kExchange,    // all-to-alls of context ranks, from their start until the result may be used
  kReduce,      // reductions, from their start until the result may be used
  kUpload,      // uploads of micro-batches to the device
  kParameters,  // times in which a unit's parameters are whole
  kGradients,   // times in which a unit's gradient is whole
};
const char* track_name(Track track);

struct RecordedSpan {
  Track track = Track::kHost;
  std::string name;
  uint64_t began = 0, ended = 0;     // position among all begins and ends, from 1; 0: not yet
  int64_t begin_ns = 0, end_ns = 0;  // steady clock; on a device, the time of the device's work
  int64_t begin_mark = -1, end_mark = -1;  // marks of the clock; -1: host time
};

// Reads the time of work that is only enqueued on a device.
class Clock {
 public:
  virtual ~Clock() = default;
  // Marks the point after all work enqueued so far and returns the mark. Does not wait.
  virtual int64_t mark() = 0;
  // Waits for a mark and returns its time in nanoseconds of the steady clock.
  virtual int64_t nanoseconds(int64_t mark) = 0;
};

// Records the newest `capacity` spans of this process. Costs a relaxed load when off.
class Recorder {
 public:
  static Recorder& instance();
  static bool on() { return on_.load(std::memory_order_relaxed); }

  // Starts a recording and drops earlier spans. `clock` must live until `stop`; null: all tracks
  // use host time.
  void start(size_t capacity, Clock* clock);
  // Ends the recording and returns its finished spans, ordered by begin. Later calls to `end` are
  // ignored.
  std::vector<RecordedSpan> stop();
  // Returns how many spans were dropped since `start` because `capacity` was reached.
  uint64_t dropped() const { return dropped_; }

  uint64_t begin(Track track, std::string name);  // returns the span's number, from 1; 0 when off
  void end(uint64_t span);                        // ignores 0

 private:
  int64_t mark_of(Track track);

  static inline std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::deque<RecordedSpan> spans_;
  size_t capacity_ = 0;
  uint64_t next_span_ = 1, first_span_ = 1, order_ = 0, dropped_ = 0;
  Clock* clock_ = nullptr;
};

// A profiler's hooks (NVTX) around the calling thread's spans. A CUDA source file sets them before
// main.
struct Ranges {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
Ranges& outside_ranges();

// Records a span "<what> <which>" from here to the scope's end.
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
