// Race detection: the last writer and the last readers of each interval of memory are compared with
// every new access, by vector clocks.
#include <cstdio>

#include "state.h"

namespace fake_device {
namespace {

struct Access {
  int stream = -1;
  uint64_t step = 0;  // of the stream's own clock
  std::shared_ptr<const std::string> name;
};
struct Interval {
  uintptr_t end;
  Access writer;
  std::vector<Access> readers;  // one for each stream
};
using Intervals = std::map<uintptr_t, Interval>;  // by first byte

Intervals& intervals() {
  static auto* const only = new Intervals;
  return *only;
}

uint64_t races = 0;

bool is_before(const Access& earlier, const Operation& later) {
  if (earlier.stream < 0) return true;
  const auto stream = static_cast<size_t>(earlier.stream);
  return stream < later.clock.size() && later.clock[stream] >= earlier.step;
}

void report_race(const Operation& operation, bool writes, const Access& earlier, bool earlier_wrote,
                 size_t bytes) {
  static auto* const reported = new std::map<std::string, int>;
  const std::string line = "stream " + std::to_string(operation.stream) + " " + operation.name +
                           (writes ? " writes" : " reads") + " what stream " +
                           std::to_string(earlier.stream) + " " + *earlier.name +
                           (earlier_wrote ? " wrote" : " read");
  ++races;
  if (++(*reported)[line] > 1) return;
  report_line("races", line + " (" + std::to_string(bytes) + " bytes)");
}

// Makes `at` the beginning of an interval if it is inside one.
void split(Intervals& all, uintptr_t at) {
  auto next = all.upper_bound(at);
  if (next == all.begin()) return;
  const auto found = std::prev(next);
  if (found->first >= at || found->second.end <= at) return;
  Interval right = found->second;
  found->second.end = at;
  all.emplace(at, std::move(right));
}

void add_reader(Interval& interval, const Access& access) {
  for (Access& reader : interval.readers) {
    if (reader.stream == access.stream) {
      reader = access;
      return;
    }
  }
  interval.readers.push_back(access);
}

void access_interval(Interval& interval, size_t bytes, const Operation& operation, bool write,
                     const Access& access) {
  if (!is_before(interval.writer, operation)) {
    report_race(operation, write, interval.writer, true, bytes);
  }
  if (!write) return add_reader(interval, access);
  for (const Access& reader : interval.readers) {
    if (!is_before(reader, operation)) report_race(operation, true, reader, false, bytes);
  }
  interval.writer = access;
  interval.readers.clear();
}

void check(const Operation& operation, const Range& range, const Access& access) {
  Intervals& all = intervals();
  split(all, range.begin);
  split(all, range.end);
  auto it = all.lower_bound(range.begin);
  for (uintptr_t at = range.begin; at < range.end; at = it->second.end, ++it) {
    if (it == all.end() || it->first > at) {
      const uintptr_t end = it == all.end() ? range.end : std::min(range.end, it->first);
      it = all.emplace_hint(it, at, Interval{end, {}, {}});
    }
    access_interval(it->second, it->second.end - at, operation, range.write, access);
  }
}

}  // namespace

void check_for_races(const Operation& operation, const Ranges& ranges) {
  if (!state().check_races) return;
  const Access access{operation.stream, operation.clock[static_cast<size_t>(operation.stream)],
                      std::make_shared<const std::string>(operation.name)};
  for (const Range& range : ranges) {
    if (range.begin < range.end) check(operation, range, access);
  }
}

void forget_accesses(const void* data, size_t bytes) {
  Intervals& all = intervals();
  const auto begin = reinterpret_cast<uintptr_t>(data);
  split(all, begin);
  split(all, begin + bytes);
  all.erase(all.lower_bound(begin), all.lower_bound(begin + bytes));
}

}  // namespace fake_device

EXPORTED uint64_t fake_device_races() { return fake_device::races; }
