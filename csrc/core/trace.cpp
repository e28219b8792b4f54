#include "core/trace.h"

#include "core/error.h"
#include "core/watchdog.h"

namespace fastsft::trace {

const char* track_name(Track track) {
  constexpr const char* kNames[] = {"host",   "compute", "gather",     "exchange",
                                    "reduce", "upload",  "parameters", "gradients"};
  return kNames[static_cast<size_t>(track)];
}

Recorder& Recorder::instance() {
  static Recorder recorder;
  return recorder;
}

void Recorder::start(size_t capacity, Clock* clock) {
  require(capacity > 0, "capacity: expected at least one span, got 0");
  const std::lock_guard lock(mutex_);
  spans_.clear();
  capacity_ = capacity;
  clock_ = clock;
  first_span_ = next_span_;  // spans that are open now belong to no recording
  order_ = dropped_ = 0;
  on_.store(true, std::memory_order_relaxed);
}

std::vector<RecordedSpan> Recorder::stop() {
  const std::lock_guard lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  std::vector<RecordedSpan> finished;
  for (RecordedSpan& span : spans_) {
    if (span.ended == 0) continue;
    if (span.begin_mark >= 0) span.begin_ns = clock_->nanoseconds(span.begin_mark);
    if (span.end_mark >= 0) span.end_ns = clock_->nanoseconds(span.end_mark);
    finished.push_back(std::move(span));
  }
  spans_.clear();
  first_span_ = next_span_;
  clock_ = nullptr;
  return finished;
}

int64_t Recorder::mark_of(Track track) {
  return clock_ == nullptr || track == Track::kHost ? -1 : clock_->mark();
}

uint64_t Recorder::begin(Track track, std::string name) {
  if (!on()) return 0;  // without the lock, which `stop` holds while it waits for the clock
  const std::lock_guard lock(mutex_);
  if (!on()) return 0;
  if (spans_.size() == capacity_) {
    spans_.pop_front();
    ++first_span_;
    ++dropped_;
  }
  RecordedSpan& span = spans_.emplace_back();
  span.track = track;
  span.name = std::move(name);
  span.began = ++order_;
  span.begin_ns = steady_ns();
  span.begin_mark = mark_of(track);
  return next_span_++;
}

void Recorder::end(uint64_t number) {
  if (number == 0) return;
  const std::lock_guard lock(mutex_);
  if (!on() || number < first_span_) return;
  RecordedSpan& span = spans_[number - first_span_];
  span.ended = ++order_;
  span.end_ns = steady_ns();
  span.end_mark = mark_of(span.track);
}

Ranges& outside_ranges() {
  static Ranges ranges;
  return ranges;
}

void Span::open(Track track, std::string_view what, std::string_view which) {
  opened_ = true;
  std::string name(what);
  if (!which.empty()) name.append(" ").append(which);
  if (outside_ranges().push != nullptr) outside_ranges().push(name.c_str());
  span_ = Recorder::instance().begin(track, std::move(name));
}

void Span::close() {
  Recorder::instance().end(span_);
  if (outside_ranges().pop != nullptr) outside_ranges().pop();
}

}  // namespace fastsft::trace
